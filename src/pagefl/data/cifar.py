"""CIFAR-10 and CIFAR-100 from their original files: pickles in a folder or in a tar archive."""

import gzip
import zlib
from collections.abc import Mapping
from hashlib import md5
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from pagefl.core.errors import UserError

from . import bounded
from .originals import Arrays, Original
from .pickles import unpickle

HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"
BLOCK = 512  # bytes of a tar header; contents are padded to a multiple of it
LARGEST = 250_000_000  # bytes of an unpacked archive; the originals have 186 million


class Cifar(NamedTuple):
    title: str
    folder: str
    md5: Mapping[str, str]  # of each file
    parts: Mapping[str, tuple[str, ...]]  # files of the training and the test images
    labels: str
    classes: int

    def original(self, name: str, archive: str) -> Original:
        return Original(
            name=name, places=(self.folder, archive), home=HOME, verify=self.verify, read=self.read
        )

    def verify(self, source: Path) -> str:
        for name in self.md5:
            self._verified(source, name)
        return f"{', '.join(self.md5)}: md5 as published"

    def read(self, source: Path) -> Arrays:
        """Images as uint8 [n, 3, 32, 32] and labels, for training and test."""
        arrays: Arrays = {}
        for part, names in self.parts.items():
            found = [self._batch(source, name) for name in names]
            arrays[f"{part}.x"] = torch.cat([torch.from_numpy(x.copy()) for x, _ in found])
            arrays[f"{part}.y"] = torch.cat([torch.tensor(y) for _, y in found])
        return arrays

    def _batch(self, source: Path, name: str) -> tuple[np.ndarray, list[int]]:
        found = unpickle(self._verified(source, name), f"{source}: {name}")
        images, labels = (
            found.get(key.encode()) if isinstance(found, dict) else None for key in ("data", self.labels)
        )
        if (
            not isinstance(images, np.ndarray)
            or images.dtype != np.uint8
            or images.ndim != 2
            or images.shape[1] != 3072
            or not isinstance(labels, list)
            or not len(labels) == len(images) > 0
            or not all(type(label) is int and 0 <= label < self.classes for label in labels)
        ):
            raise UserError(
                f"{source}: {name} is not {self.title}'s: expected a dict with data [n, 3072] in bytes and n "
                f"{self.labels}"
            )
        return images.reshape(-1, 3, 32, 32), labels

    def _verified(self, source: Path, name: str) -> bytes:
        content = self._content(source, name)
        found = md5(content, usedforsecurity=False).hexdigest()
        if found != self.md5[name]:
            raise UserError(
                f"{source}: {name} has md5 {found}, the original's is {self.md5[name]}: it is damaged or "
                "another version; get it again"
            )
        return content

    def _content(self, source: Path, name: str) -> bytes:
        if source.is_dir():
            with (source / name).open("rb") as file:
                return bounded.read(file, LARGEST, str(source / name))
        try:
            with gzip.open(source) as file:  # unpacked in memory, never on disk
                unpacked = bounded.read(file, LARGEST, f"{source}, unpacked,")
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UserError(
                f"{source} is not {self.title}'s archive or is cut off: {error}; get it again"
            ) from error
        found = _plain_files(unpacked, f"{self.folder}/{name}")
        if len(found) != 1:
            raise UserError(
                f"{source} does not hold {self.folder}/{name} once, as a plain file; get the archive again"
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
