"""Reads files of lines that a run is writing: what was added, or some lines without the rest.

Only whole lines are read. Someone else's directory may hold anything, so that all sizes are bounded.
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

PIECE = 4_000_000  # bytes read at a time
LONGEST = 32_000_000  # bytes of a line
HEAD = 500  # bytes at the start of a file, by which another file of its name is noticed
FIRST_STRIDE = 128  # bytes between two samples of a short file: less than a line

Parsed = TypeVar("Parsed")


class Unreadable(ValueError):
    """The file is no file of lines."""


@contextmanager
def regular(path: Path) -> Iterator[int | None]:
    """An open file; None if it is not there, or is a link, a pipe or a device."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        yield file if stat.S_ISREG(os.fstat(file).st_mode) else None
    finally:
        os.close(file)


class Tail:
    """The lines that are added to a file."""

    def __init__(self, path: Path) -> None:
        self.path, self.place, self.head = path, 0, b""

    def new(self) -> tuple[bool, list[bytes]]:
        """Whether the file was cut or replaced since, so that it is read from its start; and new lines.

        At most a piece of the file: call it until there are none.
        """
        with regular(self.path) as file:
            if file is None:
                return False, []
            head = os.pread(file, HEAD, 0)
            again = not head.startswith(self.head) or os.fstat(file).st_size < self.place
            if again:
                self.place = 0
            self.head = head
            content = os.pread(file, PIECE, self.place)
            if b"\n" not in content and len(content) == PIECE:
                content = os.pread(file, LONGEST, self.place)
        whole, end, _ = content.rpartition(b"\n")
        if not end:
            if len(content) == LONGEST:
                raise Unreadable(f"{self.path}: a line is longer than {LONGEST} bytes")
            return again, []
        self.place += len(whole) + 1
        return again, whole.split(b"\n")


class Samples(Generic[Parsed]):
    """Lines that are evenly spaced over a file, and the last one, however long the file is.

    Samples lie on a grid that gets twice as wide when the file has outgrown it, so that few are read again.
    """

    def __init__(self, path: Path, most: int, parse: Callable[[bytes], Parsed | None]) -> None:
        self.path, self.most, self.parse = path, most, parse
        self.stride, self.size, self.head = FIRST_STRIDE, 0, b""
        self.known: dict[int, Parsed | None] = {}  # by where the line starts
        self.starts: dict[int, int] = {}  # by grid point: where the first line after it starts

    def look(self) -> list[Parsed]:
        with regular(self.path) as file:
            if file is None:
                return []
            head, size = os.pread(file, HEAD, 0), os.fstat(file).st_size
            if not head.startswith(self.head) or size < self.size:
                self.stride, self.known, self.starts = FIRST_STRIDE, {}, {}
            self.head, self.size = head, size
            while self.size > self.stride * self.most:
                self.stride *= 2
            last = _last_line(file, self.size)
            if last is None:
                return []
            points = range(0, last, self.stride)
            self.starts = {point: self.starts.get(point, -1) for point in points}
            for point, start in self.starts.items():
                if start < 0:
                    self.starts[point] = _line_after(file, point)
            wanted = sorted({*self.starts.values(), last})
            self.known = {
                start: self.known[start] if start in self.known else self._read(file, start)
                for start in wanted
                if start <= last
            }
        return [entry for entry in self.known.values() if entry is not None]

    def _read(self, file: int, start: int) -> Parsed | None:
        end = _line_after(file, start + 1)
        line = os.pread(file, min(end - start, LONGEST), start)
        return self.parse(line) if line.endswith(b"\n") else None


def _line_after(file: int, place: int) -> int:
    """Where the first line starts that does so at this place or later; the end of the file if none does."""
    if not place:
        return 0
    at, size = place - 1, 1024
    while content := os.pread(file, size, at):
        if (found := content.find(b"\n")) >= 0:
            return at + found + 1
        at, size = at + len(content), min(2 * size, PIECE)
    return at


def _last_line(file: int, size: int) -> int | None:
    """Where the last whole line starts; None if there is none."""
    reach = 4096
    while True:
        start = max(0, size - reach)
        content = os.pread(file, size - start, start)
        end = content.rfind(b"\n")
        before = content.rfind(b"\n", 0, end) if end >= 0 else -1
        if before >= 0:
            return start + before + 1
        if start == 0:
            return 0 if end >= 0 else None
        if reach > 2 * LONGEST:
            return None
        reach *= 4
