"""Partitions that others published, on files of their exact formats, and one sentence for each thing that can
be wrong with a file.
"""

import gzip
import io
import json
import os
import pickle
import struct
import zipfile
from hashlib import md5
from pathlib import Path

import numpy as np
import pytest
import torch

import pagefl
from pagefl import UserError
from pagefl.data import cifar10, cifar100, femnist, flgo, leaf, mnist, pfllib
from pagefl.data.pickles import unpickle_foreign
from pagefl.data.shakespeare import ALPHABET
from pagefl.experiments import spec as specs

SHARED = Path(__file__).parents[3] / "shared" / "data"
CLASSES = 3


@pytest.fixture(autouse=True)
def own_folders(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PAGEFL_DATA", str(tmp_path))


def by_sentence(value: object) -> str:
    """Names of cases. Packed bytes hold the time, and every worker of a test run must find the same names."""
    return value if isinstance(value, str) else "file"


def examples(seed: int, count: int, side: int = 16) -> dict[str, np.ndarray]:
    chance = np.random.default_rng(seed)
    x = chance.normal(size=(count, 1, side, side)).astype(np.float32)
    return {"x": x, "y": chance.integers(0, CLASSES, count)}


def pfllib_folder(
    folder: Path, clients: int = 4, style: str = "{}.npz"
) -> list[dict[str, dict[str, np.ndarray]]]:
    """As PFLlib writes it, and what is in it."""
    made = [{"train": examples(2 * i, 12), "test": examples(2 * i + 1, 4)} for i in range(clients)]
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
        for i, own in enumerate(made):
            with (folder / part / style.format(i, part=part)).open("wb") as file:
                np.savez_compressed(file, data=own[part])
    labels = [np.concatenate([own["train"]["y"], own["test"]["y"]]) for own in made]
    counts = [[[int(c), int((y == c).sum())] for c in np.unique(y)] for y in labels]
    config = {"num_clients": clients, "num_classes": CLASSES, "Size of samples for labels in clients": counts}
    (folder / "config.json").write_text(json.dumps(config))
    return made


@pytest.mark.parametrize("style", pfllib.NAMES)
def test_pfllib_is_read_as_it_was_written(tmp_path, style):
    made = pfllib_folder(tmp_path / "p", style=style)
    data = pfllib.from_folder(tmp_path / "p")
    for i, own in enumerate(made):
        for part, found in (("train", data.train), ("test", data.test)):
            x, y = found.client(i)
            assert np.array_equal(x, own[part]["x"]), (i, part)
            assert np.array_equal(y, own[part]["y"])
    # the server judges by every test example, and plays with copies of training examples
    assert np.array_equal(data.server_test.x, np.concatenate([own["test"]["x"] for own in made]))
    trained = {row.tobytes() for own in made for row in own["train"]["x"]}
    tested = {row.tobytes() for own in made for row in own["test"]["x"]}
    played = {row.tobytes() for row in data.game.x.numpy()}
    assert len(played) == 4
    assert played <= trained - tested


def test_pfllib_clients_can_be_left_out_or_cut(tmp_path):
    made = pfllib_folder(tmp_path)
    (tmp_path / "train/2.npz").unlink()
    with pytest.raises(
        UserError,
        match=r"client 2 has no training file, neither train/2.npz nor train/train2_.npz; .* = \[2\]",
    ):
        pfllib.from_folder(tmp_path)
    data = pfllib.from_folder(tmp_path, without=[2])
    assert np.array_equal(data.train.client(2)[0], made[3]["train"]["x"])
    assert len(pfllib.from_folder(tmp_path, clients=2).train) == 2
    for wrong in ({"without": [9]}, {"clients": 9}, {"without": [0, 1, 2, 3]}):
        with pytest.raises(UserError, match=f"{next(iter(wrong))} = |clients = "):
            pfllib.from_folder(tmp_path, **wrong)


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("home", [b"numpy._core", b"numpy.core"])
def test_every_form_in_which_numpy_pickles_arrays(protocol, home):
    given = {
        "x": np.arange(6.0).reshape(2, 3),
        "y": np.array([1, 0]),
        "f": np.asfortranarray(np.eye(3, 2)),
        "n": np.int64(7),
    }
    content = pickle.dumps(np.array(given), protocol)
    if home == b"numpy.core" and protocol == 3:  # in later protocols names have their length before them
        content = content.replace(b"numpy._core", home)
    found = unpickle_foreign(content, "file")
    assert {*found} == {*given}
    for key, value in given.items():
        assert np.array_equal(found[key], value)
        assert np.asarray(found[key]).dtype == value.dtype


class Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def packed(content: bytes, method: int = zipfile.ZIP_DEFLATED, name: str = "data.npy") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr(name, content)
    return file.getvalue()


def as_npy(pickled: bytes, shape: str = "()", kind: str = "|O") -> bytes:
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + pickled


def dumped(**changed: object) -> bytes:
    return as_npy(pickle.dumps(np.array({**examples(0, 12), **changed}), 3))


def claims(shape: bytes) -> bytes:
    content = dumped(y=np.zeros(12, np.int64))
    assert content.count(b"K\x0cK\x01K\x10K\x10") == 1  # 12, 1, 16, 16
    return content.replace(b"(K\x0cK\x01K\x10K\x10t", b"(" + shape + b"t")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is not an npz file or is cut off"),
        (b"PK\x03\x04 nothing", "is not an npz file or is cut off"),
        (packed(dumped())[:400], "is not an npz file or is cut off"),
        (packed(dumped(), name="x.npy"), "expected one of the name 'data'"),
        (packed(dumped(), zipfile.ZIP_BZIP2), "is packed by method 12"),
        (packed(dumped()[:-60]), "cannot be unpickled"),
        (packed(b"not npy"), "is not an npz file or is cut off"),
        (packed(as_npy(bytes(96), "(12,)", "<f8")), r"holds an array \[12\] of float64"),
        (packed(as_npy(pickle.dumps(3), "(10,)")), r"holds an array \[10\] of object"),
        (packed(as_npy(pickle.dumps([1, 2]))), "holds no dict with arrays"),
        (packed(dumped(y=[0] * 12)), "holds no dict with arrays"),
        (packed(dumped(x=np.array([None] * 12))), "an array of something else than numbers"),
        (packed(dumped(x=np.array(["a"] * 12))), "an array of something else than numbers"),
        (packed(dumped(x=np.ones(12, ">f4"))), "big-endian"),
        (packed(dumped(x=np.full((12, 1, 16, 16), np.nan))), "NaN or infinite in example 0"),
        (packed(dumped(y=np.full(12, 3))), "label 3, but config.json says num_classes = 3"),
        (packed(dumped(y=np.full(12, -1))), "label -1"),
        (packed(dumped(y=np.ones(12))), "expected whole-number labels"),
        (packed(dumped(x=np.ones((11, 1, 16, 16)))), "expected n examples and n labels"),
        (packed(dumped(x=np.ones((12, 1, 9, 9), np.float32))), "they must agree"),
        (packed(dumped(y=np.zeros(12, np.int64))), "config.json says"),
        (packed(claims(b"\x8a\x06\x00\x10\xa5\xd4\xe8\x00")), "array of shape .1000000000000. in float32"),
        (packed(claims(b"J\xff\xff\xff\xff")), "whose shape is no shape"),
        (packed(as_npy(b"\x80\x03]r\xff\xff\xff\x7f.")), "more than 10000 operations, or says so"),
        (packed(as_npy(b"\x80\x03" + b"]0" * 9000 + b"N.")), "its pickle uses POP"),
        (packed(as_npy(b"\x80\x03" + b"N" * 20_000 + b".")), "more than 10000 operations"),
        (packed(as_npy(b"\x80\x04B\xff\xff\xff\xff.")), "cannot be unpickled"),
        (packed(as_npy(b"\x80\x03cbuiltins\neval\n.")), "asks for builtins.eval"),
        (packed(as_npy(b"\x80\x03cnumpy\nload\n.")), "asks for numpy.load"),
    ],
    ids=by_sentence,
)
def test_wrong_npz_files(tmp_path, content, sentence):
    pfllib_folder(tmp_path)
    (tmp_path / "train/1.npz").write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        pfllib.from_folder(tmp_path)


def test_a_hostile_npz_runs_nothing(tmp_path):
    pfllib_folder(tmp_path)
    for value in (Hostile(tmp_path / "run"), {"x": Hostile(tmp_path / "run")}):
        (tmp_path / "train/1.npz").write_bytes(packed(as_npy(pickle.dumps(value, 3))))
        with pytest.raises(UserError, match=r"asks for (posix|nt)\.system: only arrays"):
            pfllib.from_folder(tmp_path)
    assert not (tmp_path / "run").exists()


def test_a_zip_bomb_is_not_unpacked(tmp_path, monkeypatch):
    pfllib_folder(tmp_path)
    (tmp_path / "train/1.npz").write_bytes(packed(bytes(5_000_000)))
    monkeypatch.setattr(pfllib, "LARGEST", 1_000_000)
    with pytest.raises(UserError, match="to unpack to 5000000 bytes; expected deflate, and at most 1000000"):
        pfllib.from_folder(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr("pagefl.core.memory.available", lambda: 10**7)
    (tmp_path / "train/1.npz").write_bytes(packed(bytes(50_000_000)))
    with pytest.raises(UserError, match="its examples need about"):
        pfllib.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("{", "is not valid JSON"),
        ('{"a": 1, "a": 2}', "has 'a' more than once"),
        ('{"num_clients": NaN}', "holds NaN"),
        ('{"num_clients": 1e12, "num_classes": 2}', "must be whole numbers"),
        ('{"num_clients": 4, "num_classes": -2}', "must be whole numbers"),
        ("[]", "must be whole numbers"),
    ],
)
def test_wrong_configs(tmp_path, text, sentence):
    pfllib_folder(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=sentence):
        pfllib.from_folder(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(UserError, match="there is no such file"):
        pfllib.from_folder(tmp_path)


def cifar(
    folder: Path, monkeypatch: pytest.MonkeyPatch, module: object, labels: bytes, count: int = 20
) -> None:
    folder.mkdir(parents=True)
    for seed, name in enumerate(module.MD5):
        x = np.random.default_rng(seed).integers(0, 256, (count, 3072)).astype(np.uint8)
        content = pickle.dumps({b"data": x, labels: [i % 10 for i in range(count)]}, 3)
        (folder / name).write_bytes(content)
        monkeypatch.setitem(module.MD5, name, md5(content).hexdigest())


def test_cifar10_joins_its_batches_in_order(tmp_path, monkeypatch):
    cifar(tmp_path / "cifar-10-batches-py", monkeypatch, cifar10, b"labels")
    arrays = cifar10.CIFAR10.load()
    assert arrays["train.x"].shape == (100, 3, 32, 32)
    third = np.random.default_rng(2).integers(0, 256, (20, 3072))
    assert np.array_equal(arrays["train.x"][40:60].flatten(1), third)
    assert arrays["test.y"].tolist() == [i % 10 for i in range(20)]
    assert cifar10.CIFAR10.check()[1].endswith("md5 as published")


def idx(array: np.ndarray, kind: int = 8) -> bytes:
    return bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(
    folder: Path, monkeypatch: pytest.MonkeyPatch, checksums: dict[str, str], **changed: bytes
) -> None:
    folder.mkdir(exist_ok=True)
    for seed, name in enumerate(checksums):
        chance = np.random.default_rng(seed)
        made = chance.integers(0, 256, (30, 28, 28)) if "images" in name else chance.integers(0, 10, 30)
        content = changed.get(
            name.split("-ubyte")[0].replace("-", "_"), gzip.compress(idx(made.astype(np.uint8)))
        )
        (folder / name).write_bytes(content)
        monkeypatch.setitem(checksums, name, md5(content).hexdigest())


@pytest.mark.parametrize(
    ("original", "checksums", "place"),
    [(mnist.MNIST, mnist.MD5, "mnist"), (mnist.FASHION_MNIST, mnist.FASHION_MD5, "fashion-mnist")],
)
def test_idx_files_are_read_as_they_were_written(tmp_path, monkeypatch, original, checksums, place):
    write_idx(tmp_path / place, monkeypatch, checksums)
    arrays = original.load()
    assert np.array_equal(arrays["train.x"][:, 0], np.random.default_rng(0).integers(0, 256, (30, 28, 28)))
    assert np.array_equal(arrays["test.y"], np.random.default_rng(3).integers(0, 10, 30))
    assert original.check()[1] == "4 files: md5 as published"
    (tmp_path / place / "t10k-labels-idx1-ubyte.gz").write_bytes(b"other")
    with pytest.raises(UserError, match=r"has md5 .*, the original's is"):
        original.check()


ZEROS = np.zeros((30, 28, 28), np.uint8)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"not gzip", "is not packed with gzip"),
        (gzip.compress(idx(ZEROS))[:-20], "is not packed with gzip or is cut off"),
        (gzip.compress(b""), "is not an IDX file"),
        (gzip.compress(idx(ZEROS, kind=13)), "is not an IDX file of bytes in 3 dimensions"),
        (gzip.compress(idx(ZEROS[0])), "is not an IDX file of bytes in 3 dimensions"),
        (gzip.compress(idx(ZEROS)[:-5]), r"sizes are \[30, 28, 28\] and has 23515 values"),
        (gzip.compress(bytes([0, 0, 8, 3]) + b"\xff" * 12), r"sizes are \[4294967295, 4294967295"),
        (gzip.compress(idx(ZEROS[:, :9])), "expected as many images of 28×28"),
        (gzip.compress(idx(ZEROS[:7])), "expected as many images"),
        (gzip.compress(idx(ZEROS[:0])), "expected as many images"),
    ],
    ids=by_sentence,
)
def test_wrong_idx_files(tmp_path, monkeypatch, content, sentence):
    write_idx(tmp_path / "mnist", monkeypatch, mnist.MD5, train_images_idx3=content)
    with pytest.raises(UserError, match=sentence):
        mnist.MNIST.load()


def test_idx_labels_beyond_the_classes_and_bombs(tmp_path, monkeypatch):
    write_idx(
        tmp_path / "mnist",
        monkeypatch,
        mnist.MD5,
        train_labels_idx1=gzip.compress(idx(np.full(30, 10, np.uint8))),
    )
    with pytest.raises(UserError, match="up to 10; expected"):
        mnist.MNIST.load()
    monkeypatch.setattr(mnist, "LARGEST", 10_000)
    write_idx(tmp_path / "mnist", monkeypatch, mnist.MD5, train_images_idx3=gzip.compress(bytes(10**6)))
    with pytest.raises(UserError, match="unpacked, is larger than"):
        mnist.MNIST.load()


def flgo_json(path: Path, **changed: object) -> dict[str, object]:
    order = np.random.default_rng(0).permutation(20).tolist()
    found = {
        "client_names": ["Client0", "Client1"],
        "Client0": {"data": order[:9]},
        "Client1": {"data": order[9:]},
    }
    found |= changed
    path.write_text(json.dumps(found))
    return found


def test_flgo_gives_clients_the_images_at_their_places(tmp_path, monkeypatch):
    cifar(tmp_path / "cifar-100-python", monkeypatch, cifar100, b"fine_labels")
    given = flgo_json(tmp_path / "data.json")
    data = flgo.from_json(tmp_path)
    whole = cifar100.CIFAR100.load()
    for i in range(2):
        own = {
            bytes(image) for part in (data.train, data.test) for image in part.client(i)[0].flatten(1).numpy()
        }
        assert own == {
            bytes(whole["train.x"][place].flatten().numpy()) for place in given[f"Client{i}"]["data"]
        }
    assert len(data.game.y) + len(data.server_test.y) == 20
    assert len(flgo.from_json(tmp_path, clients=1).train) == 1


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"client_names": None}, "has no list client_names"),
        ({"client_names": ["Client0", "Client0"]}, "'Client0' is named more than once"),
        ({"client_names": ["Client0", "Client7"]}, "'Client7' has no list data"),
        ({"Client1": {"data": []}}, "'Client1' has no list data"),
        ({"Client1": {"data": [0, -1]}}, "'Client1' has no list data"),
        ({"Client1": {"data": [True, 2.5]}}, "'Client1' has no list data"),
        ({"Client1": {"data": [3, 3]}}, "which .* has already"),
        ({"Client1": {"data": [10**30]}}, "'Client1' has no list data"),
        (
            {"Client0": {"data": [50_000, 1, 2, 3]}, "Client1": {"data": [4, 5, 6, 7]}},
            "place 50000, and cifar100 has 20",
        ),
        ({"local_perturbation": []}, "local_perturbation"),
    ],
)
def test_wrong_flgo_files(tmp_path, monkeypatch, changed, sentence):
    cifar(tmp_path / "cifar-100-python", monkeypatch, cifar100, b"fine_labels")
    flgo_json(tmp_path / "data.json", **changed)
    with pytest.raises(UserError, match=sentence):
        flgo.from_json(tmp_path)


def leaf_json(path: Path, by_user: dict[str, tuple[list, list]], **changed: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {
        "users": [*by_user],
        "num_samples": [len(y) for _, y in by_user.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in by_user.items()},
    }
    path.write_text(json.dumps(found | changed))


def writers(seed: int, names: str, count: int = 10) -> dict[str, tuple[list, list]]:
    chance = np.random.default_rng(seed)
    return {
        name: ((chance.integers(0, 256, (count, 784)) / 255).tolist(), chance.integers(0, 62, count).tolist())
        for name in names
    }


def test_leaf_images_keep_their_roles(tmp_path):
    train, test = writers(0, "ab") | writers(1, "c"), writers(2, "cab", 4)
    leaf_json(tmp_path / "train/0.json", {name: train[name] for name in "ab"})
    leaf_json(tmp_path / "train/1.json", {"c": train["c"]})
    leaf_json(tmp_path / "test/0.json", test)
    data = leaf.from_folder(tmp_path)
    for i, name in enumerate("abc"):
        x, y = data.train.client(i)
        assert np.array_equal(x.flatten(1), np.float32(train[name][0]))
        assert y.tolist() == train[name][1]
        assert data.test.client(i)[1].tolist() == test[name][1]
    assert len(leaf.from_folder(tmp_path, clients=2).train) == 2
    leaf_json(tmp_path / "test/0.json", writers(2, "abd", 4))
    with pytest.raises(UserError, match="user 'c' is in train or in test, but not in both"):
        leaf.from_folder(tmp_path)


def test_leaf_texts_are_cut_in_their_order(tmp_path):
    text = "".join(np.random.default_rng(0).choice([*ALPHABET], 240))
    x, y = [text[i : i + 80] for i in range(160)], [text[i + 80] for i in range(160)]
    leaf_json(tmp_path / "all_data/all_data.json", {"HAMLET": (x, y)})
    data = leaf.from_folder(tmp_path)
    assert data.train.sizes.tolist() == [160 - 32 - 80]
    assert ["".join(ALPHABET[c] for c in row) for row in data.test.x] == x[-32:]
    assert "".join(ALPHABET[c] for c in data.test.y) == "".join(y[-32:])
    with pytest.raises(UserError, match="leave small users out with fewest"):
        leaf.from_folder(tmp_path, test=0.9)


IMAGE = [0.5] * 784


@pytest.mark.parametrize(
    ("users", "changed", "sentence"),
    [
        ({}, {}, "users with 2 samples or more"),
        ({"a": ([IMAGE], [1])}, {"users": ["a", "a"], "num_samples": [1, 1]}, "is not LEAF's"),
        ({"a": ([IMAGE], [1])}, {"users": ["b"]}, "is not LEAF's"),
        ({"a": ([IMAGE], [1])}, {"users": [["b"]]}, "is not LEAF's"),
        ({"a": ([IMAGE], [1])}, {"num_samples": [2]}, "has not the 2 samples"),
        ({"a": ([IMAGE], [1])}, {"user_data": {"a": 3}}, "has not the 1 samples"),
        ({"a": ([], [])}, {}, "has not the 0 samples"),
        ({"a": ([IMAGE, [1.0]], [1, 2])}, {}, "x is not an array of numbers"),
        ({"a": ([[None], [1.0]], [1, 2])}, {}, "x holds objects"),
        ({"a": ([[1e300], [1.0]], [1, 2])}, {}, "float32 cannot hold"),
        ({"a": ([IMAGE] * 2, [-1, 2])}, {}, "label -1"),
        ({"a": ([IMAGE] * 2, [0.5, 2])}, {}, "expected whole-number labels"),
        ({"a": ([[[1.0]]] * 2, [0, 2])}, {}, "expected a list of numbers for each sample"),
        ({"a": (["abc", "ab"], ["a", "b"])}, {}, "expected texts x of one length"),
        ({"a": (["abc", "abd"], ["a", "bc"])}, {}, "expected texts x of one length"),
        ({"a": (["abc", "abé"], ["a", "b"])}, {}, "is not among LEAF's 80 characters"),
    ],
)
def test_wrong_leaf_files(tmp_path, users, changed, sentence):
    leaf_json(tmp_path / "all_data/0.json", users, **changed)
    with pytest.raises(UserError, match=sentence):
        leaf.from_folder(tmp_path)


def test_wrong_leaf_folders(tmp_path):
    with pytest.raises(UserError, match="holds no LEAF data"):
        leaf.from_folder(tmp_path)
    for name in "01":
        leaf_json(tmp_path / f"all_data/{name}.json", writers(0, "a"))
    with pytest.raises(UserError, match="user 'a' is in another file too"):
        leaf.from_folder(tmp_path)
    (tmp_path / "all_data/0.json").write_text("[" * 10**5)
    with pytest.raises(UserError, match="nested too deeply"):
        leaf.from_folder(tmp_path)
    os.mkfifo(tmp_path / "all_data/2.json")
    (tmp_path / "all_data/0.json").unlink()
    with pytest.raises(UserError, match="a pipe"):
        leaf.from_folder(tmp_path)


def test_femnist_is_bytes_again(tmp_path):
    given = writers(0, "abc", 60)
    leaf_json(tmp_path / "femnist/data/train/0.json", given)
    leaf_json(tmp_path / "femnist/data/test/0.json", writers(1, "abc", 5))
    assert femnist.FEMNIST.check()[1] == "3 writers; images: 180 in train, 15 in test"
    data = femnist.federation(3, 10, 0)
    assert np.array_equal(data.train.client(1)[0].flatten(1), np.rint(np.array(given["b"][0]) * 255))
    leaf_json(tmp_path / "femnist/data/test/0.json", {"a": ([[2.0] * 784], [1])})
    with pytest.raises(UserError, match="is not FEMNIST's"):
        femnist.FEMNIST.check()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["auto", "mlp", "logistic"])
def test_a_published_partition_runs_and_resumes(tmp_path, model):
    pfllib_folder(tmp_path / "p")
    task = {"name": "pfllib", "folder": str(tmp_path / "p"), "model": model}
    whole = pagefl.run(task=task, algorithm="fedavg", rounds=2, seed=0)
    pagefl.run(task=task, algorithm="fedavg", rounds=1, seed=0, out=tmp_path / "run")
    resumed = pagefl.resume(tmp_path / "run", rounds=2)
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert f'folder = "{tmp_path / "p"}"' in (tmp_path / "run/spec.toml").read_text()


def test_a_folder_has_no_default_and_a_model_must_fit(tmp_path):
    with pytest.raises(
        UserError, match=r"task.folder is missing: it has no default; set it, as in --set task.folder"
    ):
        specs.resolve({"task": "pfllib"})
    pfllib_folder(tmp_path)
    task = specs.make_task({"name": "pfllib", "folder": str(tmp_path), "model": "lstm"}, 0)
    with pytest.raises(UserError, match=r"task.model = 'lstm': it does not fit examples"):
        task.fresh_module(0)


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="there is no folder shared/data beside the repository")
def test_a_real_pfllib_folder():
    folder = SHARED / "pfllib-fmnist-dir0.1"
    with pytest.raises(UserError, match="client 12 has no training file"):
        pfllib.from_folder(folder)
    data = pfllib.from_folder(folder, without=[12])
    counts = json.loads((folder / "config.json").read_text())["Size of samples for labels in clients"]
    del counts[12]
    for i, told in enumerate(counts):
        labels = torch.cat([data.train.client(i)[1], data.test.client(i)[1]])
        assert [[c, n] for c, n in enumerate(labels.bincount().tolist()) if n] == told
    with zipfile.ZipFile(folder / "train/train3_.npz") as archive:
        raw = archive.read("data.npy")
    assert data.train.client(3)[0].numpy().tobytes() in raw


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="there is no folder shared/data beside the repository")
def test_a_real_flgo_partition():
    """Of places only: nobody shares an image, and all 50,000 are dealt."""
    path = SHARED / "flgo-cifar100-dir0.1/data.json"
    places = flgo._places(path, json.loads(path.read_text()))
    assert len(places) == 100
    assert sorted(place for mine in places.values() for place in mine) == [*range(50_000)]
