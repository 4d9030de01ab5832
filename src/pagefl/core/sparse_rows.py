"""SparseRows: what clients keep between rounds, a row for each that has taken part, in one file.

A row is never overwritten while a checkpoint counts on it: a client's next row goes to a free place of the
file. A place is free again when neither of the two last checkpoints counts on its row. So a run that dies at
any moment goes on from its checkpoint with the rows of that moment.
"""

import os
from pathlib import Path
from tempfile import TemporaryFile
from zlib import crc32

import numpy as np
import torch

from .algorithm import State
from .arrays import Integers
from .errors import UserError

STORE = "store."  # begins the names of what a checkpoint holds of the rows


class SparseRows:
    def __init__(self, clients: int, first: State, path: Path | None) -> None:
        """`first`: what each client keeps before its first round. `path`: of the file; None for a nameless
        one."""
        self.first, self.path = first, path
        self.width = sum(value.nbytes for value in first.values())
        self.place = np.full(clients, -1, np.int64)  # of each client's row; -1: it has none
        self.checksum = np.zeros(clients, np.int64)
        self.free: list[int] = []
        self.left: tuple[list[int], list[int]] = [], []  # places: before the last checkpoint, and since
        self.rows = 0  # places of the file
        self.file: int | None = None

    def read(self, numbers: Integers, into: State) -> None:
        """The rows of these clients, as the first rows of `into`."""
        for at, number in enumerate(numbers.tolist()):
            held = self._row(number) if self.place[number] >= 0 else b""
            start = 0
            for name, value in self.first.items():
                if held:
                    part = bytearray(held[start : start + value.nbytes])
                    into[name][at] = torch.frombuffer(part, dtype=value.dtype).view(value.shape)
                    start += value.nbytes
                else:
                    into[name][at] = value

    def write(self, numbers: Integers, places: Integers, rows: State) -> None:
        """The rows of these clients, which are at these places of `rows`."""
        for number, at in zip(numbers.tolist(), places.tolist(), strict=True):
            held = b"".join(rows[name][at].contiguous().numpy().tobytes() for name in self.first)
            if self.place[number] >= 0:
                self.left[1].append(int(self.place[number]))
            place = self.free.pop() if self.free else self.rows
            self.rows = max(self.rows, place + 1)
            self.place[number], self.checksum[number] = place, crc32(held)
            os.pwrite(self._opened(), held, place * self.width)

    def saved(self) -> None:
        """A checkpoint has been written: what only the one before the last counted on is free."""
        self.free += self.left[0]
        self.left = self.left[1], []

    def state(self) -> State:
        """What a checkpoint holds of the rows: of whom there are some, where, and their checksums."""
        if self.file is not None:
            os.fsync(self.file)
        numbers = np.flatnonzero(self.place >= 0)
        found = {"clients": numbers, "places": self.place[numbers], "checksums": self.checksum[numbers]}
        return {STORE + name: torch.from_numpy(values) for name, values in found.items()}

    def load(self, state: State) -> None:
        numbers, places, checksums = (
            state[STORE + name].numpy() for name in ("clients", "places", "checksums")
        )
        self.place[:], self.checksum[:] = -1, 0
        self.place[numbers], self.checksum[numbers] = places, checksums
        needed = int(places.max(initial=-1)) + 1
        self.rows = max(needed, self._length())
        if self._length() < needed:
            raise UserError(
                f"{self.path} is shorter than the checkpoint counts on; restore it, or start over with "
                "`pagefl resume --restart`"
            )
        unused = np.setdiff1d(np.arange(self.rows), places)
        self.free, self.left = [], (unused.tolist(), [])

    def _row(self, number: int) -> bytes:
        held = os.pread(self._opened(), self.width, int(self.place[number]) * self.width)
        if crc32(held) != self.checksum[number] or len(held) != self.width:
            raise UserError(
                f"{self.path}: what client {number} keeps is not as it was written: its checksum differs; "
                "restore the file, or start over with `pagefl resume --restart`"
            )
        return held

    def _length(self) -> int:
        """Rows in the file."""
        if self.file is None and (self.path is None or not self.path.exists()):
            return 0
        return os.fstat(self._opened()).st_size // self.width if self.width else 0

    def _opened(self) -> int:
        if self.file is None:
            if self.path is None:
                with TemporaryFile() as nameless:
                    self.file = os.dup(nameless.fileno())
            else:
                self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        return self.file
