"""Tiny-ImageNet-200 from its original folder or zip: 64×64 JPEGs of 200 classes.

Le, Yang: Tiny ImageNet Challenge. 2015.
"""

import errno
import io
import sys
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import torch
from PIL import Image

from pagefl.core import cores
from pagefl.core.errors import UserError

from . import bounded
from .originals import Arrays, Original

CLASSES, SIZE = 200, 64
LARGEST = 2_000_000  # bytes per file
PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # Python unpacks other methods without a size limit
FOLDER = "tiny-imagenet-200"


# What Python raises for a broken zip file.
BROKEN = (zipfile.BadZipFile, KeyError, EOFError, zlib.error, RuntimeError, UnicodeDecodeError)
BOMBS = (Image.DecompressionBombError, Image.DecompressionBombWarning)


class Listing(NamedTuple):
    """Paths below the folder, and labels in the order of wnids.txt."""

    train: list[tuple[str, int]]
    test: list[tuple[str, int]]


def verify(source: Path) -> str:
    train, test = _list(source)
    per_class = {
        part: sorted(set(Counter(label for _, label in files).values()))
        for part, files in (("t", train), ("v", test))
    }
    spread = ["–".join(map(str, {counts[0]: 0, counts[-1]: 0})) for counts in per_class.values()]
    whole = (
        "complete"
        if (len(train), len(test)) == (500 * CLASSES, 50 * CLASSES)
        else "a subset of the original's 500 and 50"
    )
    return f"{CLASSES} classes, {spread[0]} training and {spread[1]} validation images of each: {whole}"


def read(source: Path) -> Arrays:
    listing = _list(source)
    get = _reader(source)
    arrays: Arrays = {}
    for part, files in zip(("train", "test"), listing, strict=True):
        arrays[f"{part}.x"] = _decode(files, get, f"decoding Tiny-ImageNet's {part} images")
        arrays[f"{part}.y"] = torch.tensor([label for _, label in files])
    return arrays


TINY_IMAGENET = Original(
    name="tiny-imagenet",
    places=(FOLDER, f"{FOLDER}.zip"),
    home="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    verify=verify,
    read=read,
)

Reader = Callable[[str], bytes]


def _decode(files: Sequence[tuple[str, int]], get: Reader, title: str) -> torch.Tensor:
    """Decode images in threads. Decoding releases Python's global lock."""
    from rich.console import Console  # slow to import, and needed only here
    from rich.progress import track

    images = np.empty((len(files), 3, SIZE, SIZE), np.uint8)

    def decode(i: int) -> None:
        images[i] = _image(get(files[i][0]), files[i][0])

    with warnings.catch_warnings(), ThreadPoolExecutor(cores.available()) as threads:
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        done = threads.map(decode, range(len(files)), chunksize=64)
        for _ in track(
            done,
            title,
            len(files),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
            transient=True,
        ):
            pass
    return torch.from_numpy(images)


def _image(content: bytes, name: str) -> np.ndarray:
    """Decode one image. Grey images become RGB."""
    try:
        with Image.open(io.BytesIO(content), formats=["JPEG"]) as image:
            if image.size != (SIZE, SIZE):  # known from the header: nothing large is decoded
                raise UserError(
                    f"tiny-imagenet: {name} has {image.size[0]}×{image.size[1]} pixels; expected "
                    f"{SIZE}×{SIZE}"
                )
            return np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    except (*BOMBS, OSError, SyntaxError) as error:
        raise UserError(
            f"tiny-imagenet: {name} is not a whole JPEG file ({error}); get the original again"
        ) from error


def _list(source: Path) -> Listing:
    """List every image of the original layout. Raises if something is missing."""
    names = _names(source)
    get = _reader(source)

    def lines(name: str) -> list[str]:
        if name not in names:
            raise UserError(f"{source} has no {name}; expected the original layout: wnids.txt, train/, val/")
        return get(name).decode("utf-8", "replace").splitlines()

    labels = {wnid: i for i, wnid in enumerate(line.strip() for line in lines("wnids.txt") if line.strip())}
    if len(labels) != CLASSES:
        raise UserError(f"{source}: wnids.txt names {len(labels)} classes; the original names {CLASSES}")
    train = []
    for name in sorted(names):
        parts = name.split("/")
        if len(parts) == 4 and parts[0] == "train" and parts[2] == "images" and name.endswith(".JPEG"):
            if parts[1] not in labels:
                raise UserError(
                    f"{source}: train/{parts[1]} is not a class of wnids.txt; get the original again"
                )
            train.append((name, labels[parts[1]]))
    missing = set(labels.values()) - {label for _, label in train}
    if missing:
        wnid = next(w for w, label in labels.items() if label in missing)
        raise UserError(
            f"{source}: train/{wnid}/images has no JPEG, and {len(missing)} of {CLASSES} classes have none"
        )
    test = []
    for line in lines("val/val_annotations.txt"):
        name, wnid = (*line.split("\t"), "", "")[:2]
        if f"val/images/{name}" not in names or wnid not in labels:
            raise UserError(
                f"{source}: val_annotations.txt names {name!r} of class {wnid!r}, which is not there; get "
                "it again"
            )
        test.append((f"val/images/{name}", labels[wnid]))
    if len(test) < 2:
        raise UserError(f"{source}: val_annotations.txt names {len(test)} images; the original names 10,000")
    return Listing(train, test)


def _names(source: Path) -> set[str]:
    if source.is_dir():
        return {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    with _zip(source) as archive:
        names = archive.namelist()
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise UserError(f"{source} holds {twice!r} more than once; get it again")
    return {name.removeprefix(f"{FOLDER}/") for name in names}


def _reader(source: Path) -> Reader:
    if source.is_dir():
        return lambda name: _content((source / name).open("rb"), source, name)
    archive = _zip(source)

    def get(name: str) -> bytes:
        with _whole(f"{source}: {name} cannot be unpacked"):
            found = archive.getinfo(f"{FOLDER}/{name}")
            if found.compress_type not in PACKED:
                raise UserError(
                    f"{source}: {name} is packed by method {found.compress_type}, the original's are not; "
                    "get it again"
                )
            return _content(archive.open(found), source, name)

    return get


def _content(file: IO[bytes], source: Path, name: str) -> bytes:
    with file:
        return bounded.read(file, LARGEST, f"{source}: {name}")


def _zip(source: Path) -> zipfile.ZipFile:
    with _whole(f"{source} is not a zip file or is cut off"):
        return zipfile.ZipFile(source)


@contextmanager
def _whole(problem: str) -> Iterator[None]:
    """Report what Python raises for a broken zip file as the problem."""
    try:
        yield
    except (*BROKEN, OSError) as error:
        if (
            isinstance(error, OSError) and error.errno != errno.EINVAL
        ):  # EINVAL: the file points before its own beginning
            raise
        raise UserError(f"{problem} ({error}); get it again") from error
