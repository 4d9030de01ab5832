"""Reads files up to a size limit. A file larger than the original may be a decompression bomb."""

from typing import Protocol

from pagefl.core.errors import UserError


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def read(file: Readable, most: int, name: str) -> bytes:
    content = file.read(most + 1)
    if len(content) > most:
        raise UserError(f"{name} is larger than {most / 1e6:.0f} MB, which the original is not; get it again")
    return content
