"""MNIST and Fashion-MNIST from their original files: IDX arrays of bytes, packed with gzip.

LeCun, Bottou, Bengio, Haffner: Gradient-Based Learning Applied to Document Recognition. 1998.
Xiao, Rasul, Vollgraf: Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms.
2017.
"""

import gzip
import math
import struct
import zlib
from collections.abc import Mapping
from functools import partial
from hashlib import md5
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from pagefl.core.errors import UserError

from . import bounded
from .originals import Arrays, Original

CLASSES, SIDE = 10, 28
LARGEST = 60_000_000  # bytes of a file, unpacked; the largest original has 47 million
BYTES = 8  # IDX's code for unsigned bytes
PARTS = {"train": "train", "test": "t10k"}
MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
FASHION_MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}


def verify(checksums: Mapping[str, str], source: Path) -> str:
    for name in checksums:
        _verified(checksums, source / name)
    return f"{len(checksums)} files: md5 as published"


def read(checksums: Mapping[str, str], source: Path) -> Arrays:
    """Images as uint8 [n, 1, 28, 28] and labels, for training and test."""
    arrays: Arrays = {}
    for part, prefix in PARTS.items():
        images, labels = (
            _array(source / name, _verified(checksums, source / name), dimensions)
            for name, dimensions in (
                (f"{prefix}-images-idx3-ubyte.gz", 3),
                (f"{prefix}-labels-idx1-ubyte.gz", 1),
            )
        )
        if images.shape[1:] != (SIDE, SIDE) or not 0 < len(images) == len(labels) or labels.max() >= CLASSES:
            raise UserError(
                f"{source}: {prefix} has images {list(images.shape)} and labels {list(labels.shape)} up to "
                f"{labels.max(initial=0)}; expected as many images of {SIDE}×{SIDE} as labels from 0 to "
                f"{CLASSES - 1}"
            )
        arrays[f"{part}.x"] = torch.from_numpy(images[:, None].copy())
        arrays[f"{part}.y"] = torch.from_numpy(labels.astype(np.int64))
    return arrays


def _original(name: str, places: tuple[str, ...], home: str, checksums: Mapping[str, str]) -> Original:
    return Original(name, places, home, partial(verify, checksums), partial(read, checksums))


MNIST = _original("mnist", ("mnist", "MNIST/raw"), "http://yann.lecun.com/exdb/mnist", MD5)
FASHION_MNIST = _original(
    "fashion-mnist",
    ("fashion-mnist", "FashionMNIST/raw"),
    "https://github.com/zalandoresearch/fashion-mnist",
    FASHION_MD5,
)


def _verified(checksums: Mapping[str, str], path: Path) -> bytes:
    with path.open("rb") as file:
        content = bounded.read(file, LARGEST, str(path))
    found, expected = md5(content, usedforsecurity=False).hexdigest(), checksums[path.name]
    if found != expected:
        raise UserError(
            f"{path} has md5 {found}, the original's is {expected}: it is damaged or another version; get it "
            "again"
        )
    try:
        with gzip.open(path) as file:
            return bounded.read(file, LARGEST, f"{path}, unpacked,")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path} is not packed with gzip or is cut off: {error}; get it again") from error


def _array(path: Path, content: bytes, dimensions: int) -> npt.NDArray[np.uint8]:
    """An IDX file: two zeros, the type, the number of dimensions, each size in four bytes, the values."""
    start = 4 * (1 + dimensions)
    if content[:4] != bytes([0, 0, BYTES, dimensions]) or len(content) < start:
        raise UserError(f"{path} is not an IDX file of bytes in {dimensions} dimensions; get it again")
    sizes = struct.unpack(f">{dimensions}I", content[4:start])
    if math.prod(sizes) != len(content) - start:
        raise UserError(
            f"{path} says that its sizes are {list(sizes)} and has {len(content) - start} values; it is "
            "damaged, get it again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)
