"""What a run tells: a line per round, a line per round of every client's numbers, in memory and on disk."""

import json
import math
import os
from io import BufferedWriter
from pathlib import Path
from typing import Any

import pandas as pd

Record = dict[str, Any]
ROUNDS, CLIENTS = "rounds.jsonl", "clients.jsonl"


class Records:
    """Appends to the run directory, where there is one. A torn last line is cut off by the next resume."""

    def __init__(self, directory: Path | None, sizes: dict[str, int] | None = None) -> None:
        """`sizes`: how much of each file a checkpoint vouches for; the rest is to be written anew."""
        self.rounds: list[Record] = []
        self.clients: list[Record] = []
        self.files: dict[str, BufferedWriter] = {}
        if directory is None:
            return
        for name in (ROUNDS, CLIENTS):
            path = directory / name
            path.touch()
            os.truncate(path, (sizes or {}).get(name, 0))
            self.files[name] = path.open("ab")
        self.rounds, self.clients = read(directory)

    def write(self, record: Record, clients: Record | None) -> None:
        for name, held, entry in ((ROUNDS, self.rounds, record), (CLIENTS, self.clients, clients)):
            if entry is None:
                continue
            held.append(entry)
            if file := self.files.get(name):
                file.write(json.dumps(entry, allow_nan=False).encode() + b"\n")
                file.flush()

    def sync(self) -> dict[str, int]:
        """To the disk itself; how long each file now is."""
        for file in self.files.values():
            os.fsync(file.fileno())
        return {name: file.tell() for name, file in self.files.items()}

    def close(self) -> None:
        for file in self.files.values():
            file.close()


def read(directory: Path) -> tuple[list[Record], list[Record]]:
    """Whole lines only: a run may be writing at this moment."""

    def lines(path: Path) -> list[Record]:
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]

    return lines(directory / ROUNDS), lines(directory / CLIENTS)


def finite(value: float) -> float | None:
    """JSON knows no NaN: what is not a number is null."""
    value = float(value)
    return value if math.isfinite(value) else None


def history(rounds: list[Record]) -> pd.DataFrame:
    return pd.json_normalize(rounds, sep="_")


def by_client(clients: list[Record]) -> pd.DataFrame:
    """A row per round and client."""
    parts = [pd.DataFrame({"client": range(len(entry["local_accuracy"])), **entry}) for entry in clients]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["client", "round"])
