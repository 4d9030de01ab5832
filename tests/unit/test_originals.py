"""The loaders on tiny files in the original formats, and one sentence for each thing that can be wrong with a
file.
"""

import gzip
import io
import os
import pickle
import tarfile
import zipfile
from collections import namedtuple
from hashlib import md5, sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pagefl import UserError
from pagefl.cli import main
from pagefl.data import cifar100, originals, shakespeare, tiny_imagenet
from pagefl.data.cifar100 import CIFAR100
from pagefl.data.pickles import unpickle
from pagefl.data.shakespeare import SHAKESPEARE
from pagefl.data.tiny_imagenet import TINY_IMAGENET


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def old_pickle(images: np.ndarray, labels: list[int]) -> bytes:
    """As CIFAR's own: keys are bytes, and numpy goes by its old names."""
    content = pickle.dumps(
        {b"data": images, b"fine_labels": labels, b"batch_label": b"training batch 1 of 1"}, protocol=3
    )
    assert b"numpy._core.multiarray" in content
    return content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def cifar(folder: Path, monkeypatch: pytest.MonkeyPatch, images: int = 6) -> dict[str, np.ndarray]:
    """Its two files, and what is in them. The loader is told their checksums."""
    folder.mkdir(parents=True)
    pixels = {}
    for seed, name in enumerate(cifar100.MD5):
        pixels[name] = np.random.default_rng(seed).integers(0, 256, (images, 3072)).astype(np.uint8)
        content = old_pickle(pixels[name], [7 * i % 100 for i in range(images)])
        (folder / name).write_bytes(content)
        monkeypatch.setitem(cifar100.MD5, name, md5(content).hexdigest())
    return pixels


def test_cifar100_is_read_as_it_was_written(tmp_path, monkeypatch):
    pixels = cifar(tmp_path / "cifar-100-python", monkeypatch)
    arrays = CIFAR100.load(tmp_path)
    for name in ("train", "test"):
        assert arrays[f"{name}.x"].dtype == torch.uint8
        # the first 1024 bytes are the red channel, row by row
        assert arrays[f"{name}.x"][3, 0, 2].tolist() == pixels[name][3, 64:96].tolist()
        assert np.array_equal(arrays[f"{name}.x"].reshape(6, -1), pixels[name])
        assert arrays[f"{name}.y"].tolist() == [0, 7, 14, 21, 28, 35]
    assert CIFAR100.check(tmp_path)[1] == "train, test: md5 as published"


def test_the_archive_is_as_good_as_the_folder(tmp_path, monkeypatch):
    cifar(tmp_path / "cifar-100-python", monkeypatch)
    with tarfile.open(tmp_path / "cifar-100-python.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "cifar-100-python", "cifar-100-python")
    from_folder = CIFAR100.load(tmp_path)
    (tmp_path / "cifar-100-python").rename(tmp_path / "elsewhere")
    from_archive = CIFAR100.load(tmp_path)
    assert all(torch.equal(from_folder[name], from_archive[name]) for name in from_folder)
    whole = (tmp_path / "cifar-100-python.tar.gz").read_bytes()
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        UserError, match=r"cifar-100-python.tar.gz is not CIFAR-100's archive or is cut off: .*; get it again"
    ):
        CIFAR100.load(tmp_path)


def hard_link(archive: tarfile.TarFile, content: bytes) -> None:
    add(archive, "other", content)
    link(archive, tarfile.LNKTYPE)


def link(archive: tarfile.TarFile, kind: bytes) -> None:
    member = tarfile.TarInfo("cifar-100-python/train")
    member.type, member.linkname = kind, "cifar-100-python/other" if kind == tarfile.LNKTYPE else "other"
    archive.addfile(member)


def add(archive: tarfile.TarFile, name: str, content: bytes, **about: object) -> None:
    member = tarfile.TarInfo(f"cifar-100-python/{name}")
    member.size = len(content)
    for key, value in about.items():
        setattr(member, key, value)
    archive.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize(
    "fill",
    [
        hard_link,
        lambda archive, content: (add(archive, "other", content), link(archive, tarfile.SYMTYPE)),
        lambda archive, content: link(archive, tarfile.CHRTYPE),
        lambda archive, content: link(archive, tarfile.FIFOTYPE),
        lambda archive, content: (add(archive, "train", content), add(archive, "train", content)),
        lambda archive, content: add(archive, "train", content, type=tarfile.GNUTYPE_SPARSE),
        lambda archive, content: add(
            archive, "other", content, pax_headers={"path": "cifar-100-python/train"}
        ),
        lambda archive, content: None,
    ],
    ids=["hard link", "symbolic link", "device", "pipe", "twice", "sparse", "another name", "missing"],
)
def test_only_a_plain_file_of_the_archive_is_read(fill, tmp_path, monkeypatch):
    cifar(tmp_path / "folder", monkeypatch)
    with tarfile.open(tmp_path / "cifar-100-python.tar.gz", "w:gz") as archive:
        fill(archive, (tmp_path / "folder/train").read_bytes())
        add(archive, "test", (tmp_path / "folder/test").read_bytes())
    with pytest.raises(
        UserError, match=r"does not hold cifar-100-python/train once, as a plain file; get the archive again"
    ):
        CIFAR100.load(tmp_path)


def test_an_archive_that_unpacks_to_more_than_the_original_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("pagefl.data.cifar.LARGEST", 100_000)
    with tarfile.open(tmp_path / "cifar-100-python.tar.gz", "w:gz") as archive:
        add(archive, "train", b"0" * 10_000_000)
    with pytest.raises(
        UserError, match=r"tar.gz, unpacked, is larger than 0 MB, which the original is not; get it again"
    ):
        CIFAR100.load(tmp_path)


@pytest.mark.parametrize(
    "spoil", [b"-0000000777", b"\x80" + b"\xff" * 10, b"77777777777", b"0_1", b"\0" * 11]
)
def test_an_archive_with_a_size_that_is_none(spoil, tmp_path, monkeypatch):
    """Negative, in another notation, beyond the end: what is found is not the original, and nothing hangs."""
    cifar(tmp_path / "folder", monkeypatch)
    unpacked = io.BytesIO()
    with tarfile.open(fileobj=unpacked, mode="w") as archive:
        add(archive, "train", (tmp_path / "folder/train").read_bytes())
    content = bytearray(unpacked.getvalue())
    content[124 : 124 + len(spoil)] = spoil
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(gzip.compress(content))
    with pytest.raises(UserError, match="train has md5"):
        CIFAR100.load(tmp_path)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_headers_of_the_archive_are_not_parsed(kind, tmp_path, monkeypatch):
    """Python 3.11.7 takes hours for such a header of a few megabytes."""
    cifar(tmp_path / "folder", monkeypatch)
    with tarfile.open(tmp_path / "cifar-100-python.tar.gz", "w:gz") as archive:
        add(archive, "long", b"0" * 5_000_000, type=kind)
        for name in cifar100.MD5:
            add(archive, name, (tmp_path / "folder" / name).read_bytes())
    assert CIFAR100.check(tmp_path)[1] == "train, test: md5 as published"


def test_files_of_a_folder_are_read_no_further_than_the_originals(tmp_path, tiny, monkeypatch):
    (tmp_path / "cifar-100-python").mkdir()
    (tmp_path / "shakespeare").mkdir()
    huge = [tmp_path / "cifar-100-python/train", tmp_path / "shakespeare/raw_data.txt", tiny / "wnids.txt"]
    for path in huge:
        with path.open("wb") as file:
            file.truncate(10**9)  # a hole: it takes no room on the disk
    for original in (CIFAR100, SHAKESPEARE, TINY_IMAGENET):
        with pytest.raises(
            UserError, match=r"is larger than (250|20|2) MB, which the original is not; get it again"
        ):
            original.check(tmp_path)


class Hostile:
    def __reduce__(self):
        return os.system, (f"touch {self.path}",)

    def __init__(self, path: Path) -> None:
        self.path = path


def test_a_hostile_pickle_is_refused_and_runs_nothing(tmp_path):
    for payload in (Hostile(tmp_path / "run"), {"data": [Hostile(tmp_path / "run")]}):
        with pytest.raises(
            UserError, match=r"train: it asks for (posix|nt)\.system: only arrays, lists, dicts and bytes"
        ):
            unpickle(pickle.dumps(payload), "train")
    assert not (tmp_path / "run").exists()
    for name in (
        "builtins.eval",
        "numpy.load",
        "numpy.f2py.crackfortran.getlincoef",
        "pathlib.Path",
        "builtins.getattr",
    ):
        module, _, function = name.rpartition(".")
        with pytest.raises(UserError, match="it asks for"):
            unpickle(f"c{module}\n{function}\n(S'x'\ntR.".encode(), "train")
    with pytest.raises(UserError, match="something else than numbers"):
        unpickle(pickle.dumps(np.array([1, "two"], dtype=object), protocol=3), "train")


@pytest.mark.parametrize(
    "content", [b"", b"not a pickle", old_pickle(np.zeros((2, 3072), np.uint8), [1, 2])[:-40]]
)
def test_a_damaged_pickle_is_one_sentence(content):
    with pytest.raises(UserError, match=r"train cannot be unpickled: .*; it is damaged, get it again"):
        unpickle(content, "train")


def test_an_array_that_lies_about_its_size_is_one_sentence():
    content = old_pickle(np.zeros((2, 3072), np.uint8), [1, 2])
    assert b"M\x00\x0c" in content  # 3072
    with pytest.raises(UserError, match=r"array of shape .* in uint8 with 6144 bytes; it is damaged"):
        unpickle(content.replace(b"M\x00\x0c", b"M\x01\x0c"), "train")


def test_wrong_cifar_files(tmp_path, monkeypatch):
    folder = tmp_path / "cifar-100-python"
    cifar(folder, monkeypatch)
    (folder / "train").write_bytes((folder / "train").read_bytes() + b"!")
    with pytest.raises(
        UserError, match=r"train has md5 \w+, the original's is \w+: it is damaged or another version"
    ):
        CIFAR100.load(tmp_path)
    other = pickle.dumps({"data": [1, 2]})
    (folder / "train").write_bytes(other)
    monkeypatch.setitem(cifar100.MD5, "train", md5(other).hexdigest())
    with pytest.raises(
        UserError, match=r"train is not CIFAR-100's: expected a dict with data \[n, 3072\] in bytes"
    ):
        CIFAR100.load(tmp_path)
    (folder / "train").unlink()
    with pytest.raises(UserError, match=r"cifar100: .*train cannot be read: No such file or directory"):
        CIFAR100.load(tmp_path)
    (folder / "train").mkdir()
    with pytest.raises(UserError, match=r"cifar100: .*train cannot be read: Is a directory"):
        CIFAR100.load(tmp_path)


def jpeg(seed: int, mode: str = "RGB", side: int = 64) -> bytes:
    shape = (side, side, 3) if mode == "RGB" else (side, side)
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8), mode).save(
        buffer, "JPEG"
    )
    return buffer.getvalue()


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Three classes of the original layout, two training images and one validation image each, one of them
    grey.
    """
    monkeypatch.setattr(tiny_imagenet, "CLASSES", 3)
    folder = tmp_path / "tiny-imagenet-200"
    (folder / "val/images").mkdir(parents=True)
    wnids = ["n02", "n01", "n03"]  # labels go by this order, not by the alphabet
    (folder / "wnids.txt").write_text("\n".join(wnids) + "\n")
    for i, wnid in enumerate(wnids):
        (folder / f"train/{wnid}/images").mkdir(parents=True)
        (folder / f"train/{wnid}/{wnid}_boxes.txt").write_text("")
        for j in range(2):
            content = jpeg(10 * i + j, "L" if (i, j) == (0, 1) else "RGB")
            (folder / f"train/{wnid}/images/{wnid}_{j}.JPEG").write_bytes(content)
        (folder / f"val/images/val_{i}.JPEG").write_bytes(jpeg(100 + i))
    lines = [f"val_{i}.JPEG\t{wnid}\t0\t32\t44\t62" for i, wnid in enumerate(wnids)]
    (folder / "val/val_annotations.txt").write_text("\n".join(lines) + "\n")
    return folder


def test_tiny_imagenet_is_decoded_as_pillow_does(tiny):
    arrays = TINY_IMAGENET.load(tiny.parent)
    assert arrays["train.y"].tolist() == [1, 1, 0, 0, 2, 2]  # files by name: n01, n02, n03
    assert arrays["test.y"].tolist() == [0, 1, 2]
    grey = arrays["train.x"][3]
    assert torch.equal(grey[0], grey[1])
    expected = np.asarray(Image.open(tiny / "train/n03/images/n03_1.JPEG")).transpose(2, 0, 1)
    assert np.array_equal(arrays["train.x"][5], expected)
    assert "2 training and 1 validation images of each: a subset" in TINY_IMAGENET.check(tiny.parent)[1]


def test_the_zip_is_as_good_as_the_folder(tiny):
    from_folder = TINY_IMAGENET.load(tiny.parent)
    with zipfile.ZipFile(tiny.parent / "tiny-imagenet-200.zip", "w") as archive:
        for path in sorted(tiny.rglob("*")):
            archive.write(path, path.relative_to(tiny.parent))
    tiny.rename(tiny.parent / "elsewhere")
    from_zip = TINY_IMAGENET.load(tiny.parent)
    assert all(torch.equal(from_folder[name], from_zip[name]) for name in from_folder)
    whole = (tiny.parent / "tiny-imagenet-200.zip").read_bytes()
    (tiny.parent / "tiny-imagenet-200.zip").write_bytes(whole[:-100])
    with pytest.raises(UserError, match="is not a zip file or is cut off"):
        TINY_IMAGENET.load(tiny.parent)


def test_a_zip_bomb_is_not_unpacked(tiny):
    with zipfile.ZipFile(tiny.parent / "tiny-imagenet-200.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny-imagenet-200/wnids.txt", b"0" * 10_000_000)
    tiny.rename(tiny.parent / "elsewhere")
    with pytest.raises(UserError, match=r"wnids.txt is larger than 2 MB, which the original is not"):
        TINY_IMAGENET.load(tiny.parent)


@pytest.mark.parametrize("declared", [5, 10_000_000])
def test_a_zip_that_lies_about_a_size_is_not_unpacked(tiny, declared):
    """The size is written in two places, and both lie."""
    real, path = 3_000_000, tiny.parent / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny-imagenet-200/wnids.txt", b"0" * real)
    content = path.read_bytes()
    assert content.count(real.to_bytes(4, "little")) == 2
    path.write_bytes(content.replace(real.to_bytes(4, "little"), declared.to_bytes(4, "little")))
    tiny.rename(tiny.parent / "elsewhere")
    with pytest.raises(UserError, match=r"wnids.txt (cannot be unpacked|is larger than 2 MB)"):
        TINY_IMAGENET.load(tiny.parent)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_what_python_unpacks_without_a_bound_is_refused(tiny, method):
    """A bzip2 stream may say that it has few bytes, and Python unpacks all of them before it cuts."""
    with zipfile.ZipFile(tiny.parent / "tiny-imagenet-200.zip", "w", method) as archive:
        archive.writestr("tiny-imagenet-200/wnids.txt", b"n01")
    tiny.rename(tiny.parent / "elsewhere")
    with pytest.raises(UserError, match=rf"wnids.txt is packed by method {method}, the original's are not"):
        TINY_IMAGENET.load(tiny.parent)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_files_of_one_name_are_refused(tiny):
    with zipfile.ZipFile(tiny.parent / "tiny-imagenet-200.zip", "w") as archive:
        for path in sorted(tiny.rglob("*")):
            archive.write(path, path.relative_to(tiny.parent))
        archive.writestr("tiny-imagenet-200/wnids.txt", b"n03\nn02\nn01")
    tiny.rename(tiny.parent / "elsewhere")
    with pytest.raises(UserError, match=r"holds 'tiny-imagenet-200/wnids.txt' more than once"):
        TINY_IMAGENET.load(tiny.parent)


@pytest.mark.parametrize("name", ["utf-8", "version"])
def test_a_damaged_zip_is_one_sentence(tiny, name):
    path = tiny.parent / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny-imagenet-200/\N{BLACK HEART SUIT}", b"")
    content = path.read_bytes()
    heart, entry = "\N{BLACK HEART SUIT}".encode(), content.index(b"PK\x01\x02")
    damaged = (
        content.replace(heart, b"\xff" * 3)
        if name == "utf-8"
        else content[: entry + 6] + b"\xff" + content[entry + 7 :]
    )
    path.write_bytes(damaged)
    tiny.rename(tiny.parent / "elsewhere")
    with pytest.raises(UserError, match="is not a zip file or is cut off"):
        TINY_IMAGENET.load(tiny.parent)


def test_a_zip_without_its_beginning_is_one_sentence(tiny):
    """It then points to places before its beginning, for which Python raises an OSError."""
    path = tiny.parent / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny-imagenet-200/wnids.txt", b"n01")
    path.write_bytes(path.read_bytes()[10:])
    tiny.rename(tiny.parent / "elsewhere")
    with pytest.raises(UserError, match=r"wnids.txt cannot be unpacked \(.*\); get it again"):
        TINY_IMAGENET.load(tiny.parent)


@pytest.mark.parametrize("side", [10_000, 60_000])  # Pillow only warns of the smaller one
def test_a_bomb_of_a_jpeg_is_one_sentence(tiny, side, recwarn):
    content = jpeg(1)
    frame = content.index(b"\xff\xc0") + 5
    (tiny / "train/n01/images/n01_0.JPEG").write_bytes(
        content[:frame] + side.to_bytes(2, "big") * 2 + content[frame + 4 :]
    )
    with pytest.raises(
        UserError, match=r"n01_0.JPEG is not a whole JPEG file \(Image size \(\d+ pixels\) exceeds limit"
    ):
        TINY_IMAGENET.load(tiny.parent)
    assert not recwarn.list


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda t: (t / "wnids.txt").unlink(), r"has no wnids.txt; expected the original layout"),
        (lambda t: (t / "wnids.txt").write_text("n01\n"), "wnids.txt names 1 classes"),
        (
            lambda t: (t / "val/images/val_1.JPEG").unlink(),
            r"names 'val_1.JPEG' of class 'n01', which is not there",
        ),
        (
            lambda t: (t / "train/n04/images").mkdir(parents=True) or (t / "train/n04/images/a.JPEG").touch(),
            "train/n04 is not",
        ),
        (lambda t: [p.unlink() for p in (t / "train/n02/images").iterdir()], "train/n02/images has no JPEG"),
        (
            lambda t: (t / "train/n01/images/n01_0.JPEG").write_bytes(jpeg(1)[:300]),
            "n01_0.JPEG is not a whole JPEG file",
        ),
        (
            lambda t: (t / "train/n01/images/n01_0.JPEG").write_bytes(b"GIF89a"),
            "n01_0.JPEG is not a whole JPEG file",
        ),
        (
            lambda t: (t / "train/n01/images/n01_0.JPEG").write_bytes(jpeg(1, side=32)),
            "has 32×32 pixels; expected 64×64",
        ),
    ],
)
def test_wrong_tiny_imagenet_files(tiny, spoil, sentence):
    spoil(tiny)
    with pytest.raises(UserError, match=sentence):
        TINY_IMAGENET.load(tiny.parent)


WORKS = """The complete works

1609

THE SONNETS

by William Shakespeare

  Not. A play, so nobody speaks here.



1601

A PLAY OF TWO

by William Shakespeare

DRAMATIS PERSONAE
    Not yet anybody's line.

  FIRST. A horse,   a horse! My kingdom for
    a horse, and for a saddle, and for all that goes with it;
    so be it.
  Second. Too short.
  First. And again I say: a horse! Exit, pursued by a bear.
                                        Exit



1602

A MONOLOGUE

by William Shakespeare

  Only. One role makes no play.
  Only. One role makes no play.
  Only. One role makes no play.
"""


def test_roles_of_a_play():
    """By hand: names in capitals, indented lines go on, spaces are merged, every line ends with a space."""
    spoken = shakespeare.users(WORKS)
    assert list(spoken) == ["A_PLAY_OF_TWO_FIRST"]  # the second says too little, and one role is no play
    assert spoken["A_PLAY_OF_TWO_FIRST"] == (
        "A horse, a horse! My kingdom for a horse, and for a saddle, and for all that goes with it; so be "
        "it. "
        "And again I say: a horse! Exit, pursued by a bear. Exit "
    )


def test_windows_are_eighty_characters_and_the_next(tmp_path, monkeypatch):
    path = tmp_path / "shakespeare" / "raw_data.txt"
    path.parent.mkdir()
    path.write_text("\ufeff" + WORKS)
    monkeypatch.setattr(shakespeare, "SHA256", sha256(path.read_bytes()).hexdigest())
    arrays = SHAKESPEARE.load(tmp_path)
    text = shakespeare.users(WORKS)["A_PLAY_OF_TWO_FIRST"]
    x, y = shakespeare.windows(arrays, 0, first=5, count=7)
    for i in range(7):
        assert "".join(shakespeare.ALPHABET[c] for c in x[i]) == text[5 + i : 85 + i]
        assert shakespeare.ALPHABET[y[i]] == text[85 + i]
    assert len(shakespeare.ALPHABET) == len(set(shakespeare.ALPHABET)) == 80


def test_samples_of_shakespeare_are_cut_to_their_last_characters(monkeypatch):
    text = torch.arange(3000, dtype=torch.int64) % 80
    arrays = {"text": text.to(torch.uint8), "starts": torch.tensor([0, 1000, 2000, 3000])}
    monkeypatch.setattr(originals.Original, "load", lambda self: arrays)
    whole, cut = (shakespeare.federation(2, 400, seed=0, length=length) for length in (80, 8))
    for (_, long), (_, short) in zip(whole.named(), cut.named(), strict=True):
        assert torch.equal(long.x[:, -8:], short.x)
        assert torch.equal(long.y, short.y)


def test_another_edition_of_shakespeare_is_refused(tmp_path):
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare/raw_data.txt").write_text(WORKS)
    with pytest.raises(
        UserError, match=r"has sha256 \w{12}…, the text that LEAF preprocesses has 5886dc8d8d2d…"
    ):
        SHAKESPEARE.load(tmp_path)


def test_arrays_are_made_once_and_anew_when_a_file_changes(tmp_path, monkeypatch):
    folder = tmp_path / "cifar-100-python"
    cifar(folder, monkeypatch)
    first = CIFAR100.load(tmp_path)
    monkeypatch.setattr("pagefl.data.cifar.unpickle", lambda *_: pytest.fail("read again"))
    assert torch.equal(CIFAR100.load(tmp_path)["train.x"], first["train.x"])
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (folder / "train").unlink(), (folder / "test").unlink(), folder.rmdir()
    cifar(folder, monkeypatch, images=9)
    assert len(CIFAR100.load(tmp_path)["train.y"]) == 9
    (cache,) = (tmp_path / "cache/pagefl/data").iterdir()
    cache.write_bytes(cache.read_bytes()[:1000])  # damaged: as good as none
    assert len(CIFAR100.load(tmp_path)["train.y"]) == 9


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch):
    cifar(tmp_path / "cifar-100-python", monkeypatch)
    usage = namedtuple("usage", "total used free")
    with monkeypatch.context() as full:
        full.setattr(originals.shutil, "disk_usage", lambda path: usage(10, 9, 1000))
        with pytest.raises(
            UserError, match=r"has 0 MB free, the arrays need 0 MB; make room or set XDG_CACHE_HOME"
        ):
            CIFAR100.load(tmp_path)
    with monkeypatch.context() as full:

        def no_space(*args, **kwargs):
            raise OSError(28, "No space left on device")

        full.setattr(originals, "save_file", no_space)
        with pytest.raises(
            UserError, match=r"cannot be written: No space left on device; set XDG_CACHE_HOME"
        ):
            CIFAR100.load(tmp_path)
    assert not list((tmp_path / "cache/pagefl/data").iterdir())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cifar-100-python/train"))
    with pytest.raises(UserError, match="cannot be written: Not a directory"):
        CIFAR100.load(tmp_path)


def test_no_permission_is_one_sentence(tmp_path, monkeypatch):
    cifar(tmp_path / "cifar-100-python", monkeypatch)

    def denied(self, mode):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", denied)  # root may read everything
    with pytest.raises(UserError, match="train cannot be read: Permission denied"):
        CIFAR100.load(tmp_path)


def command(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["pagefl", *arguments])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_the_commands_say_what_is_there_and_what_is_missing(tmp_path, monkeypatch, capsys):
    assert command(monkeypatch, "data", "check", "cifar100-small", "--root", str(tmp_path)) == 2
    said = capsys.readouterr().err
    assert (
        f"there is no {tmp_path}/cifar-100-python or {tmp_path}/cifar-100-python.tar.gz; get the original "
        "from https" in said
    )
    cifar(tmp_path / "cifar-100-python", monkeypatch)
    monkeypatch.setenv("PAGEFL_DATA", str(tmp_path))
    assert command(monkeypatch, "data", "check", "cifar100") == 0
    assert "md5 as published" in capsys.readouterr().err
    assert command(monkeypatch, "data", "prepare", "cifar100") == 0
    assert "train.x [6, 3, 32, 32]" in capsys.readouterr().err
    assert command(monkeypatch, "data", "check", "synthetic") == 0
    assert command(monkeypatch, "data", "check", "cifar11") == 2
    assert "there is no such task; expected one of synthetic" in capsys.readouterr().err
    figure = tmp_path / "dealt.png"
    assert command(monkeypatch, "data", "show", "synthetic", "--clients", "5", "--out", str(figure)) == 0
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert "210" in capsys.readouterr().out
