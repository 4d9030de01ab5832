"""What Flower users have on disk becomes a federation, exactly; what cannot is refused with a sentence that
helps.
"""

import importlib
import io
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import pagefl
from pagefl import FederatedData, Task
from pagefl.core import memory

datasets = pytest.importorskip("datasets")
pa = pytest.importorskip("pyarrow")
from pagefl.data.huggingface import from_disk  # noqa: E402 (needs datasets)

datasets.disable_progress_bars()
NAMES = datasets.ClassLabel(names=["cat", "dog"])
VECTORS = datasets.Features(
    {"id": datasets.Value("int64"), "v": datasets.List(datasets.Value("float64")), "label": NAMES}
)
IMAGES = datasets.Features({"img": datasets.Image(), "coarse_label": NAMES, "fine_label": NAMES})


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("went to the network"))


def vectors(i: int, n: int = 10):
    v = np.random.default_rng(i).normal(size=(n, 3)).astype(np.float32)
    return datasets.Dataset.from_dict(
        {"id": range(n), "v": v, "label": (v[:, 0] > 0).astype(int)}, features=VECTORS
    )


def images(i: int, n: int = 6, mode: str = "RGB", size: tuple[int, int] = (4, 5)):
    channels = {"L": (), "RGB": (3,), "I;16": ()}[mode]
    pixels = np.random.default_rng(i).integers(
        0, 255, (n, *size, *channels), np.uint16 if mode == "I;16" else np.uint8
    )
    labels = [k % 2 for k in range(n)]
    table = {"img": [Image.fromarray(p) for p in pixels], "coarse_label": [0] * n, "fine_label": labels}
    return pixels, datasets.Dataset.from_dict(table, features=IMAGES)


def pair(table):
    return torch.tensor(table["v"][:], dtype=torch.float32), torch.tensor(table["label"][:])


def save(folder, **tables):
    for name, table in tables.items():
        table.save_to_disk(folder / name)
    return folder


def same(one, other):
    roles = ["train", "test", "game", "server_test"]
    return all(
        torch.equal(getattr(getattr(one, r), k), getattr(getattr(other, r), k))
        for r in roles
        for k in ("x", "y", "starts")
    )


@pytest.mark.parametrize("layout", ["folders", "dict"])
def test_partitions_are_clients_in_the_order_of_their_numbers(tmp_path, layout):
    tables = {f"partition_{i}": vectors(i, 10 + i) for i in range(12)}
    save(tmp_path, **tables) if layout == "folders" else datasets.DatasetDict(tables).save_to_disk(tmp_path)
    expected = FederatedData.split([pair(table) for table in tables.values()], test=0.3, server=0.1, seed=4)
    assert same(from_disk(tmp_path, test=0.3, server=0.1, seed=4), expected)


def test_splits_and_the_servers_own_data_are_kept(tmp_path):
    split = {i: datasets.DatasetDict(train=vectors(i), test=vectors(50 + i, 4)) for i in range(2)}
    save(tmp_path, partition_0=split[0], partition_1=split[1], test=vectors(99))
    found, given = (
        from_disk(str(tmp_path)),
        FederatedData(
            [pair(d["train"]) for d in split.values()],
            [pair(d["test"]) for d in split.values()],
            pair(vectors(99)),
        ),
    )
    assert torch.equal(found.train.x.sort(0).values, given.train.x.sort(0).values)
    assert same(found, given)


def test_only_what_is_missing_is_cut(tmp_path):
    save(
        tmp_path,
        partition_0=datasets.DatasetDict(train=vectors(0), test=vectors(1, 4)),
        partition_1=vectors(2),
    )
    found = from_disk(tmp_path)
    assert found.train.sizes.tolist() == [8, 6]
    assert found.test.sizes.tolist() == [4, 2]
    assert len(found.game.y) + len(found.server_test.y) == 4
    assert torch.equal(found.test.client(0)[0], pair(vectors(1, 4))[0])


def test_images_are_bytes_and_grey_ones_join_colour(tmp_path):
    colour, grey = images(0), images(1, mode="L")
    save(tmp_path, partition_0=colour[1], partition_1=grey[1], server=images(2)[1])
    found = from_disk(tmp_path, test=0.2)
    assert found.train.x.dtype == torch.uint8
    everything = [torch.cat([part.client(i)[0] for part in (found.train, found.test)]) for i in range(2)]
    for got, wanted in zip(
        everything, [colour[0].transpose(0, 3, 1, 2), np.repeat(grey[0][:, None], 3, 1)], strict=True
    ):
        assert sorted(map(bytes, got.numpy())) == sorted(map(bytes, np.ascontiguousarray(wanted)))
    assert found.server_test.x.shape[1:] == (3, 4, 5)


def test_grey_images_alone_have_one_channel(tmp_path):
    found = from_disk(save(tmp_path, partition_0=images(1, 10, mode="L")[1]))
    assert found.train.x.shape[1:] == (1, 4, 5)


@pytest.mark.parametrize(
    ("dtype", "kept"), [("uint8", torch.uint8), ("int32", torch.int64), ("float64", torch.float32)]
)
def test_arrays_keep_their_shape(tmp_path, dtype, kept):
    features = datasets.Features({"a": datasets.Array2D((2, 3), dtype), "label": datasets.Value("int32")})
    a = np.arange(60).reshape(10, 2, 3).astype(dtype)
    table = datasets.Dataset.from_dict({"a": a, "label": range(10)}, features=features)
    train = from_disk(save(tmp_path, partition_0=table)).train
    assert train.x.dtype == kept
    assert torch.equal(train.x, torch.tensor(a).to(kept)[train.y])


def test_a_run_on_images(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 2, 3), nn.Linear(12, 2)

        def forward(self, x):
            return self.head(self.conv(x / 255).relu().flatten(1))

    save(tmp_path, **{f"partition_{i}": images(i, 10)[1] for i in range(3)})
    task = Task("pictures", Net, from_disk(tmp_path), {"lr": 0.1, "epochs": 1, "batch_size": 4, "workers": 1})
    run = pagefl.run(task=task, algorithm="fedavg", rounds=1)
    assert 0 <= run.history["global_accuracy"].iloc[-1] <= 1


def renamed(i):
    return vectors(i).cast_column("label", datasets.ClassLabel(names=["dog", "cat"]))


def broken(row):
    buffer = io.BytesIO()
    Image.new("L", (4, 5)).save(buffer, "PNG")
    cells = [{"bytes": buffer.getvalue(), "path": None}] * 4 + [row]
    return datasets.Dataset.from_dict(
        {"img": cells, "label": [0] * 5}, features=datasets.Features(img=datasets.Image(), label=NAMES)
    )


def deep_png():
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((4, 5), np.uint16)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("tables", "options", "words"),
    [
        ({}, {}, ["holds no folder", "partition_0"]),
        ({"train": vectors(0)}, {}, ["holds train", "partition_0"]),
        (
            {"partition_0": vectors(0), "partition_2": vectors(1)},
            {},
            ["partition_0, partition_2", "without a gap"],
        ),
        ({"partition_0": vectors(0), "server": vectors(1), "test": vectors(2)}, {}, ["both server and test"]),
        (
            {"partition_0": datasets.DatasetDict(train=vectors(0), valid=vectors(1))},
            {},
            ["partition_0 has splits train, valid"],
        ),
        (
            {"partition_0": vectors(0)},
            {"x": "pixels"},
            ["x='pixels'", "partition_0", "'v' (List)", "'label' (ClassLabel)"],
        ),
        ({"partition_0": vectors(0).remove_columns("v")}, {}, ["x=None", "'id' (Value)"]),
        (
            {"partition_0": vectors(0).rename_column("label", "a").add_column("b", [1] * 10, feature=NAMES)},
            {},
            ["y=None", "'b' (ClassLabel)"],
        ),
        (
            {"partition_0": vectors(0), "partition_1": vectors(1).remove_columns("v")},
            {},
            ["partition_1 has 10 rows of id, label"],
        ),
        (
            {"partition_0": vectors(0), "partition_1": vectors(1).select([])},
            {},
            ["partition_1 cannot be read", "with examples"],
        ),
        ({"partition_0": vectors(0), "partition_1": renamed(1)}, {}, ["class names", "must agree"]),
        ({"partition_0": vectors(0, 2)}, {}, ["partition_0 has 2 examples", "test=0.24", "leave one"]),
        ({"partition_0": vectors(0)}, {"y": "v"}, ["y has shape [6, 3]"]),
        (
            {"partition_0": images(0)[1], "partition_1": images(1, size=(5, 5))[1]},
            {},
            ["[3, 4, 5] in partition_0", "[3, 5, 5]"],
        ),
        ({"partition_0": images(0, mode="I;16")[1]}, {}, ["column 'img'", "row 0", "it is no PNG"]),  # a TIFF
        (
            {"partition_0": broken({"bytes": deep_png(), "path": None})},
            {},
            ["column 'img'", "row 4", "its mode is I;16"],
        ),
        ({"partition_0": broken({"bytes": b"GIF89a", "path": None})}, {}, ["column 'img'", "row 4"]),
    ],
)
def test_refused(tmp_path, tables, options, words):
    with pytest.raises(pagefl.UserError) as refusal:
        from_disk(save(tmp_path, **tables), **options)
    assert all(word in str(refusal.value) for word in words), refusal.value


def encoded(kind: str, side: int = 4, **options) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), (200, 30, 30)).save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("kind", "options"), [("PNG", {}), ("JPEG", {}), ("BMP", {}), ("WEBP", {"lossless": True})]
)
def test_formats_that_are_read(tmp_path, kind, options):
    cells = [{"bytes": encoded(kind, **options), "path": None}] * 10
    table = datasets.Dataset.from_dict(
        {"img": cells, "label": [0] * 10}, features=datasets.Features(img=datasets.Image(), label=NAMES)
    )
    found = from_disk(save(tmp_path, partition_0=table)).train.x
    assert (found[0, :, 2, 2].int() - torch.tensor([200, 30, 30])).abs().max() < 8


@pytest.mark.parametrize("kind", ["EPS", "GIF", "TIFF", "PPM", "ICO", "JPEG2000", "PCX", "TGA", "DDS"])
def test_other_formats_are_not_even_opened(tmp_path, kind, monkeypatch):
    """Pillow would start Ghostscript for an EPS, which is a program that somebody else wrote."""
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("started a program"))
    monkeypatch.setattr("subprocess.check_call", lambda *_, **__: pytest.fail("started a program"))
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_, **__: pytest.fail("started Ghostscript"))
    table = broken({"bytes": encoded(kind, 8), "path": None})
    with pytest.raises(
        pagefl.UserError, match=r"row 4 no image \(it is no PNG, JPEG, BMP or WEBP\); expected the bytes of"
    ):
        from_disk(save(tmp_path, partition_0=table))


@pytest.mark.parametrize("side", [10_000, 60_000])  # Pillow only warns of the smaller one
def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path, side, recwarn):
    content = bytearray(encoded("BMP"))
    content[18:26] = 2 * side.to_bytes(4, "little")
    with pytest.raises(pagefl.UserError, match=r"row 4 no image \(Image size \(\d+ pixels\) exceeds limit"):
        from_disk(save(tmp_path, partition_0=broken({"bytes": bytes(content), "path": None})))
    assert not [warning for warning in recwarn.list if "pixels" in str(warning.message)]


def test_ragged_lists_and_missing_values_are_refused(tmp_path):
    for name, v, words in [
        ("a", [[1.0], [1.0, 2.0]], "lists of lengths [1, 2]"),
        ("b", [[1.0], [None]], "1 missing"),
        ("c", [["s"]] * 2, "string"),
    ]:
        table = datasets.Dataset.from_dict({"v": v, "label": [0, 1]})
        with pytest.raises(pagefl.UserError) as refusal:
            from_disk(save(tmp_path / name, partition_0=table))
        assert words in str(refusal.value)


def test_an_address_in_place_of_an_image_is_not_opened(tmp_path):
    table = datasets.Dataset.from_dict(
        {"img": [{"bytes": None, "path": "https://example.com/cat.png"}] * 5, "label": [0] * 5}
    )
    types = datasets.Features(
        {"img": {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}, "label": NAMES}
    )
    # save_to_disk would fetch it
    info = save(tmp_path, partition_0=table.cast(types)) / "partition_0" / "dataset_info.json"
    info.write_text(
        json.dumps(
            {
                **json.loads(info.read_text()),
                "features": datasets.Features(img=datasets.Image(), label=NAMES).to_dict(),
            }
        )
    )
    with pytest.raises(pagefl.UserError, match="row 0 no image"):
        from_disk(tmp_path)


@pytest.mark.parametrize("file", ["data-00000-of-00001.arrow", "state.json", "dataset_info.json"])
def test_a_truncated_file_is_named(tmp_path, file):
    path = next(save(tmp_path, partition_0=vectors(0, 200)).rglob(file))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(pagefl.UserError, match="partition_0 cannot be read"):
        from_disk(tmp_path)


@pytest.mark.parametrize("kind", ["lists", "images"])
def test_offsets_beyond_the_end_of_a_file_are_not_followed(tmp_path, kind):
    """Each row begins a megabyte after the one before, in a file of a few kilobytes."""
    one = encoded("BMP")
    features = datasets.Features(
        v=datasets.List(datasets.Value("float64")) if kind == "lists" else datasets.Image(), label=NAMES
    )
    cells = np.ones((10, 3)) if kind == "lists" else [{"bytes": one, "path": None}] * 10
    path = save(
        tmp_path, partition_0=datasets.Dataset.from_dict({"v": cells, "label": [0] * 10}, features=features)
    )
    (file,) = path.rglob("*.arrow")
    told, lie = (np.arange(11, dtype=np.int32) * step for step in (3 if kind == "lists" else len(one), 10**6))
    assert file.read_bytes().count(told.tobytes()) == 1
    file.write_bytes(file.read_bytes().replace(told.tobytes(), lie.tobytes()))
    with pytest.raises(pagefl.UserError, match="partition_0 is damaged"):
        from_disk(tmp_path)


def test_a_compressed_file_is_refused_before_it_grows(tmp_path, monkeypatch):
    """A thousand equal rows take a few hundred bytes, and 24 kB when they are read."""
    (file,) = save(tmp_path, partition_0=vectors(0)).rglob("*.arrow")
    with pa.ipc.open_stream(str(file)) as reader:
        rows = reader.read_all().slice(0, 1)
    table = pa.concat_tables([rows] * 1000).combine_chunks()
    for kind in ("lz4", "zstd"):
        with pa.ipc.new_stream(
            str(file), table.schema, options=pa.ipc.IpcWriteOptions(compression=kind)
        ) as writer:
            writer.write_table(table)
        assert file.stat().st_size < table.nbytes / 5
        with monkeypatch.context() as patch:
            patch.setattr(datasets, "load_from_disk", lambda *_: pytest.fail("read"))
            with pytest.raises(
                pagefl.UserError, match=r"\.arrow is compressed; expected an uncompressed file"
            ):
                from_disk(tmp_path)
    with pa.ipc.new_stream(str(file), table.schema) as writer:
        writer.write_table(table)
    assert from_disk(tmp_path).train.sizes.tolist() == [560]


def test_a_compressed_dictionary_is_refused(tmp_path):
    table = vectors(0).data.table.append_column("word", pa.array(["long"] * 10).dictionary_encode())
    (file,) = save(tmp_path, partition_0=vectors(0)).rglob("*.arrow")
    with pa.ipc.new_stream(
        str(file), table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
    ) as writer:
        writer.write_table(table)
    with pytest.raises(pagefl.UserError, match="is compressed"):
        from_disk(tmp_path)


@pytest.mark.parametrize("name", ["../elsewhere.arrow", "/dev/zero", "", "..", 7, None])
def test_names_that_lead_elsewhere_are_not_followed(tmp_path, name, monkeypatch):
    state = save(tmp_path, partition_0=vectors(0)) / "partition_0" / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "_data_files": [{"filename": name}]}))
    monkeypatch.setattr(datasets, "load_from_disk", lambda *_: pytest.fail("read"))
    with pytest.raises(pagefl.UserError, match=r"state.json names .*expected the name of a file"):
        from_disk(tmp_path)


def test_splits_that_lead_elsewhere_are_not_followed(tmp_path):
    save(tmp_path, partition_0=datasets.DatasetDict(train=vectors(0)), elsewhere=vectors(1))
    (tmp_path / "partition_0" / "dataset_dict.json").write_text('{"splits": ["../elsewhere"]}')
    with pytest.raises(pagefl.UserError, match=r"dataset_dict.json names '../elsewhere'"):
        from_disk(tmp_path)


def test_images_are_measured_before_they_are_decoded(tmp_path, monkeypatch):
    """Three images of 48 MB each, in files of a few kilobytes: of six copies of each, 600 MB have room for
    two."""
    buffer = io.BytesIO()
    Image.new("RGB", (4000, 4000)).save(buffer, "PNG", compress_level=9)
    decoded: list[object] = []
    monkeypatch.setattr(
        Image.Image, "convert", lambda image, mode: decoded.append(mode) or Image.new(mode, (1, 1))
    )
    monkeypatch.setattr(memory, "available", lambda: 600_000_000)
    cells = [{"bytes": buffer.getvalue(), "path": None}] * 3
    table = datasets.Dataset.from_dict(
        {"img": cells, "label": [0] * 3}, features=datasets.Features(img=datasets.Image(), label=NAMES)
    )
    with pytest.raises(
        pagefl.UserError, match=r"its examples need about 864 MB of memory, and 600 MB are free; use fewer"
    ):
        from_disk(save(tmp_path, partition_0=table))
    assert len(decoded) == 2


def test_arrays_are_measured_before_they_are_copied(tmp_path, monkeypatch):
    """Many references to one file of 2 MB: state.json may name it a hundred times."""
    features = datasets.Features({"a": datasets.Array2D((250, 1000), "uint8"), "label": NAMES})
    table = datasets.Dataset.from_dict(
        {"a": np.zeros((8, 250, 1000), np.uint8), "label": [0, 1] * 4}, features=features
    )
    state = save(tmp_path, partition_0=table) / "partition_0" / "state.json"
    content = json.loads(state.read_text())
    state.write_text(json.dumps({**content, "_data_files": content["_data_files"] * 100}))
    monkeypatch.setattr(memory, "available", lambda: 150_000_000)
    with pytest.raises(
        pagefl.UserError, match=r"its examples need about 200.* MB of memory, and 150 MB are free"
    ):
        from_disk(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["numbers", "images"])
def test_what_a_federation_takes_is_about_what_is_measured(tmp_path, kind):
    """The most memory that a process had, minus what it had before it read anything."""
    if kind == "numbers":
        features = datasets.Features({"a": datasets.Array2D((100, 500), "uint8"), "label": NAMES})
        table = datasets.Dataset.from_dict(
            {"a": np.zeros((1000, 100, 500), np.uint8), "label": [0] * 1000}, features=features
        )
    else:
        cells = [{"bytes": encoded("PNG", 200), "path": None}] * 400
        features = datasets.Features(img=datasets.Image(), label=NAMES)
        table = datasets.Dataset.from_dict({"img": cells, "label": [0] * 400}, features=features)
    save(tmp_path, partition_0=table)
    program = (
        "import re, sys; from pagefl.data import huggingface as h\n"
        "status = '/proc/self/status'\n"
        "def most(): return 1024 * int(re.search(r'VmHWM:\\s+(\\d+) kB', open(status).read())[1])\n"
        "class Room(h.Room):\n"
        "    def take(self, size): super().take(size); sizes.append(self.size)\n"
        "sizes, h.Room = [], Room\n"
        "before = most()\n"
        "h.from_disk(sys.argv[1])\n"
        "print((most() - before) / sizes[-1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert 0.3 < float(done.stdout) < 1.2


def test_no_folder(tmp_path):
    with pytest.raises(pagefl.UserError, match="nowhere is not a folder"):
        from_disk(tmp_path / "nowhere")


def test_without_datasets_the_extra_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "pagefl.data.huggingface")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        pagefl.UserError, match=r'datasets is not installed; `pip install "pagefl\[huggingface\]"`'
    ):
        importlib.import_module("pagefl.data.huggingface")


def test_what_flower_partitions(tmp_path):
    partitioner = pytest.importorskip("flwr_datasets.partitioner").DirichletPartitioner(
        3, "label", alpha=1.0, min_partition_size=8, seed=1
    )
    partitioner.dataset = vectors(0, 90)
    for i in range(3):
        partitioner.load_partition(i).save_to_disk(tmp_path / f"partition_{i}")
    expected = FederatedData.split([pair(partitioner.load_partition(i)) for i in range(3)])
    assert same(from_disk(tmp_path), expected)
