"""A pipe or a device in place of a file is refused: to open it would be to wait for ever."""

import os
import signal
from pathlib import Path

import pytest
import torch

from pagefl import UserError
from pagefl.core.files import regular, regular_below
from pagefl.data.cifar100 import CIFAR100
from pagefl.data.shakespeare import SHAKESPEARE
from pagefl.data.tiny_imagenet import TINY_IMAGENET
from pagefl.deploy import parties
from pagefl.experiments import spec as specs

ORIGINALS = (CIFAR100, TINY_IMAGENET, SHAKESPEARE)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch, tmp_path):
    """A pipe that is opened after all ends the test."""

    def fail(*_):
        raise AssertionError("it waits for a pipe")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    usual = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, usual)


def pipe(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("original", ORIGINALS, ids=lambda original: original.name)
@pytest.mark.parametrize("ask", ["check", "load"])
def test_in_place_of_an_archive(original, ask, tmp_path):
    pipe(tmp_path / original.places[-1])
    with pytest.raises(UserError, match="is a pipe, a device or a socket; expected a regular file"):
        getattr(original, ask)(tmp_path)


@pytest.mark.parametrize(
    ("original", "place"),
    [(CIFAR100, "train"), (TINY_IMAGENET, "train/n01/images/n01_0.JPEG"), (TINY_IMAGENET, "wnids.txt")],
)
@pytest.mark.parametrize("ask", ["check", "load"])
def test_among_the_files(original, place, ask, tmp_path):
    pipe(tmp_path / original.places[0] / place)
    with pytest.raises(UserError, match="is a pipe"):
        getattr(original, ask)(tmp_path)


def test_a_device_and_a_link_to_one(tmp_path):
    (tmp_path / CIFAR100.places[0]).mkdir()
    (tmp_path / CIFAR100.places[0] / "train").symlink_to("/dev/zero")
    with pytest.raises(UserError, match="train is a pipe, a device or a socket"):
        CIFAR100.load(tmp_path)


def test_in_place_of_the_cache(tmp_path):
    """It is as good as none."""
    from pagefl.data import originals

    folder = tmp_path / "tiny-imagenet-200"
    folder.mkdir()
    (folder / "file").write_text("")
    made = {"x": torch.ones(3)}
    own = originals.Original("tiny-imagenet", ("tiny-imagenet-200",), "", str, lambda source: made)
    own.load(tmp_path)
    (cache,) = originals.cache_root().iterdir()
    cache.unlink()
    pipe(cache)
    assert torch.equal(own.load(tmp_path)["x"], made["x"])
    assert cache.is_file()


def test_a_spec_and_a_partys_file(tmp_path):
    where = pipe(tmp_path / "pipe")
    with pytest.raises(UserError, match="is a pipe"):
        specs.read(where)
    with pytest.raises(UserError, match="is a pipe"):
        parties.read_server(where)
    with pytest.raises(UserError, match="is a pipe"):
        parties.read_client(where, holdout=False)


def test_a_federation_of_hugging_face(tmp_path):
    huggingface = pytest.importorskip("pagefl.data.huggingface")
    pipe(tmp_path / "partition_0" / "state.json")
    with pytest.raises(UserError, match="is a pipe"):
        huggingface.from_disk(tmp_path)


def test_files_are_what_they_were(tmp_path):
    """Links to files and folders are followed; a file is listed by itself."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("here")
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "file")
    assert [path.name for path, _ in regular_below(tmp_path)] == ["file", "link"]
    assert [path.name for path, _ in regular_below(tmp_path / "link")] == ["link"]
    assert regular(tmp_path / "link").st_size == 4
