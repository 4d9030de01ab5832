"""CIFAR-100 from its original files.

Krizhevsky: Learning Multiple Layers of Features from Tiny Images. 2009.
"""

import gzip
import io
import pickle
import zlib
from hashlib import md5
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from pagefl.core.errors import UserError

from . import bounded
from .originals import Arrays, Original

MD5 = {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"}
CLASSES = 100
FOLDER = "cifar-100-python"
BLOCK = 512  # bytes of a tar header; contents are padded to a multiple of it
LARGEST = 250_000_000  # bytes of the unpacked archive; the original has 186 million


def verify(source: Path) -> str:
    for name in MD5:
        _verified(source, name)
    return f"{', '.join(MD5)}: md5 as published"


def read(source: Path) -> Arrays:
    """Images as uint8 [n, 3, 32, 32] and labels, for training and test."""
    arrays: Arrays = {}
    for name in MD5:
        found = unpickle(_verified(source, name), f"{source}: {name}")
        images, labels = (
            found.get(key) if isinstance(found, dict) else None for key in (b"data", b"fine_labels")
        )
        if (
            not isinstance(images, np.ndarray)
            or images.ndim != 2
            or images.shape[1] != 3072
            or not _are_labels(labels, images)
        ):
            raise UserError(
                f"{source}: {name} is not CIFAR-100's: expected a dict with data [n, 3072] and n fine_labels"
            )
        arrays[f"{name}.x"] = torch.from_numpy(images.reshape(-1, 3, 32, 32))
        arrays[f"{name}.y"] = torch.tensor(labels)
    return arrays


CIFAR100 = Original(
    name="cifar100",
    places=(FOLDER, f"{FOLDER}.tar.gz"),
    home="https://www.cs.toronto.edu/~kriz/cifar.html",
    verify=verify,
    read=read,
)


def unpickle(content: bytes, name: str) -> Any:
    """Unpickle lists, dicts, numbers, bytes and arrays of bytes. Anything else is refused and never run."""
    try:
        return _plain(_ArraysOnly(io.BytesIO(content), encoding="bytes").load())
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    except Exception as error:  # a damaged pickle can raise anything
        raise UserError(
            f"{name} cannot be unpickled: {error or type(error).__name__}; it is damaged, get it again"
        ) from error


class _DType(NamedTuple):
    code: Any
    align: Any = None
    copy: Any = None

    def __setstate__(self, state: object) -> None:  # byte order: single bytes have none
        pass


class _Array:
    """Replaces NumPy's array constructor, which a malicious pickle could misuse."""

    value: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[object, tuple[int, ...], _DType, bool, bytes]) -> None:
        _, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _DType) or dtype.code not in (b"u1", "u1") or not isinstance(raw, bytes):
            raise UserError(
                "it holds an array of something else than unsigned bytes, which CIFAR-100's do not"
            )
        self.value = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C").copy()


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return lambda *_: _Array()
        if (module, name) == ("numpy", "dtype"):
            return _DType
        if (module, name) == ("numpy", "ndarray"):
            return None  # only used as an argument of _reconstruct
        raise UserError(
            f"it asks for {module}.{name}: only arrays, lists, dicts and bytes are built; get the "
            "original file"
        )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return value.value if isinstance(value, _Array) else value


def _are_labels(labels: object, images: np.ndarray) -> bool:
    return (
        isinstance(labels, list)
        and len(labels) == len(images) > 0
        and all(type(label) is int and 0 <= label < CLASSES for label in labels)
    )


def _verified(source: Path, name: str) -> bytes:
    content = _content(source, name)
    found = md5(content, usedforsecurity=False).hexdigest()
    if found != MD5[name]:
        raise UserError(
            f"{source}: {name} has md5 {found}, the original's is {MD5[name]}: it is damaged or another "
            "version; get it again"
        )
    return content


def _content(source: Path, name: str) -> bytes:
    if source.is_dir():
        with (source / name).open("rb") as file:
            return bounded.read(file, LARGEST, str(source / name))
    try:
        with gzip.open(source) as file:  # unpacked in memory, never on disk
            unpacked = bounded.read(file, LARGEST, f"{source}, unpacked,")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(
            f"{source} is not CIFAR-100's archive or is cut off: {error}; get it again"
        ) from error
    found = _plain_files(unpacked, f"{FOLDER}/{name}")
    if len(found) != 1:
        raise UserError(
            f"{source} does not hold {FOLDER}/{name} once, as a plain file; get the archive again"
        )
    return found[0]


def _plain_files(archive: bytes, name: str) -> list[bytes]:
    """All plain files of this name in a tar archive.

    `tarfile` is not used. It follows links and trusts headers, so a malicious archive could keep it busy for
    hours.
    """
    found, at = [], 0
    while at < len(archive):
        header, at = archive[at : at + BLOCK], at + BLOCK
        octal = header[124:136].strip(b"\0 ")
        size = int(octal, 8) if octal.isdigit() and not octal.strip(b"01234567") else 0
        if header[:100].rstrip(b"\0") == name.encode() and header[156:157] in b"0\0":
            found.append(archive[at : at + size])
        at += -(-size // BLOCK) * BLOCK
    return found
