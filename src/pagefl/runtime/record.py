"""Records of a run, in memory and on disk: one line per round, and one line with all clients' numbers."""

import json
import math
import os
from collections.abc import Mapping
from hashlib import sha256
from io import BufferedWriter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagefl.core.errors import UserError

from . import facts, numbers, vouched

if TYPE_CHECKING:  # half a second, which a run does not need
    import pandas as pd

Record = dict[str, Any]
ROUNDS, CLIENTS = FILES = "rounds.jsonl", "clients.jsonl"
WRONG_IN = {ROUNDS: numbers.wrong_in_round, CLIENTS: numbers.wrong_in_clients}


class Records:
    """Appends records to the run directory, if there is one."""

    def __init__(self, directory: Path | None, held: Mapping[str, bytes] | None = None) -> None:
        """`held`: what a checkpoint covers of the files. Nothing is written before `open`."""
        before = {name: (held or {}).get(name, b"") for name in FILES}
        self.rounds, self.clients = (
            parsed((directory or Path()) / name, content) for name, content in before.items()
        )
        self.files: dict[str, BufferedWriter] = {}
        self.digests = {name: sha256(content) for name, content in before.items()}
        self.sizes = {directory / name: len(content) for name, content in before.items()} if directory else {}

    def open(self) -> None:
        """Open the files to append to them. What the checkpoint does not cover is cut off, and written
        again later."""
        for path, size in self.sizes.items():
            path.touch()
            os.truncate(path, size)
            self.files[path.name] = path.open("ab")

    def write(self, record: Record, clients: Record | None) -> None:
        for name, held, entry in ((ROUNDS, self.rounds, record), (CLIENTS, self.clients, clients)):
            if entry is None:
                continue
            held.append(entry)
            if file := self.files.get(name):
                line = json.dumps(entry, allow_nan=False).encode() + b"\n"
                file.write(line)
                file.flush()
                self.digests[name].update(line)

    def sync(self) -> dict[str, vouched.Claim]:
        """Flush to the disk. Returns size and checksum of each file, for a checkpoint."""
        for file in self.files.values():
            os.fsync(file.fileno())
        return {
            name: {"size": file.tell(), "sha256": self.digests[name].hexdigest()}
            for name, file in self.files.items()
        }

    def close(self) -> None:
        for file in self.files.values():
            file.close()


def read(directory: Path) -> tuple[list[Record], list[Record]]:
    """A run's records up to its last checkpoint. The run may be writing more at this moment."""
    return vouched_by(newest_facts(directory), directory)


def vouched_by(claims: Mapping[str, Any] | None, directory: Path) -> tuple[list[Record], list[Record]]:
    """`claims`: the facts of a checkpoint."""
    held = vouched.held(directory, claims) if claims else {}
    rounds, clients = (parsed(directory / name, held.get(name, b"")) for name in FILES)
    return rounds, clients


def newest_facts(directory: Path) -> dict[str, Any] | None:
    """The facts of the last checkpoint; None if the run has not begun."""
    if not has_begun(directory):
        return None
    try:
        return facts.read_facts(directory / facts.NAME)
    except facts.Damaged as damage:
        raise UserError(
            f"{damage}; `pagefl resume {directory}` goes on from the one before it, if that is whole"
        ) from None


def has_begun(directory: Path) -> bool:
    """Whether a run has begun here.

    A run writes a checkpoint before its first record. Records without a checkpoint are the rest of a run.
    """
    if any((directory / name).exists() for name in (facts.NAME, facts.PREVIOUS)):
        return True
    return any(
        path.exists() and not (path.is_file() and not path.stat().st_size)
        for path in map(directory.joinpath, FILES)
    )


def parsed(path: Path, content: bytes) -> list[Record]:
    found = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        if not isinstance(entry, dict):
            raise UserError(f"{path}: line {number} is not a round's record; {vouched.way_out(path.parent)}")
        if wrong := WRONG_IN[path.name](entry):
            raise UserError(
                f"{path}: line {number} is not a round's record: {wrong} is not as a run writes it; "
                f"{vouched.way_out(path.parent)}"
            )
        found.append(entry)
    return found


def finite(value: float) -> float | None:
    """The value, or None if it is not finite: JSON has no NaN."""
    value = float(value)
    return value if math.isfinite(value) else None


def history(rounds: list[Record]) -> "pd.DataFrame":
    import pandas as pd

    return _numeric(pd.json_normalize(rounds, sep="_"))


def by_client(clients: list[Record]) -> "pd.DataFrame":
    """One row per round and client."""
    import pandas as pd

    # a record names its clients where they are not all of them
    parts = [pd.DataFrame({"client": range(len(entry["local_accuracy"])), **entry}) for entry in clients]
    if not parts:
        return pd.DataFrame(columns=["client", "round"])
    return _numeric(pd.concat([_numeric(part) for part in parts], ignore_index=True))


def _numeric(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Columns of which nothing is known are NaN, not None."""
    empty = [name for name in frame.columns if frame[name].isna().all()]
    return frame.astype(dict.fromkeys(empty, float))
