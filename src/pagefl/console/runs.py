"""The runs below a folder, and what each is doing, read from their directories."""

import json
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pagefl.core.errors import UserError, shortened
from pagefl.core.files import regular
from pagefl.experiments import defaults
from pagefl.runtime import numbers, record
from pagefl.runtime.demand import REQUEST
from pagefl.runtime.holder import holder
from pagefl.runtime.own_files import OLD, PROBLEM, SPEC, check_own_files

from .lines import Samples
from .lines import regular as opened

DEEPEST, MOST_RUNS = 6, 2000
SPARKS, PACED = 40, 8  # points of a sparkline, and how many of the last of them tell the pace
LARGEST_SPEC = 1_000_000  # bytes
OUTCOME, DEPLOY = "outcome.json", "deploy"  # what a deployment leaves beside the records
WATCHED = (SPEC, record.ROUNDS, "checkpoint", PROBLEM, OUTCOME, REQUEST)  # files by which a run changes
Row = dict[str, Any]


class NoSuchRun(UserError):
    """The name is not that of a run below the folder."""


def find(root: Path) -> list[str]:
    """Names of the runs below a folder: their paths from it. Links are not followed."""
    return [name for name, _ in zip(_names(root, "", DEEPEST), range(MOST_RUNS), strict=False)]


def _names(folder: Path, prefix: str, depth: int) -> Iterator[str]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        name = prefix + entry.name
        if entry.name.startswith((".", OLD)) or not _is_text(name) or not entry.is_dir(follow_symlinks=False):
            continue
        if os.path.lexists(os.path.join(entry.path, SPEC)):
            yield name
        elif depth:
            yield from _names(Path(entry.path), f"{name}/", depth - 1)


def _is_text(name: str) -> bool:
    """Whether an address can hold the name; other file names are not Unicode."""
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False


def place(root: Path, name: str) -> Path:
    """The directory of a run. Whatever the name is, it lies below the folder, and no link leads there."""
    parts = name.split("/")
    if any(part in ("", ".", "..") or part.startswith((".", OLD)) or "\0" in part for part in parts):
        raise NoSuchRun(f"{shortened(name)}: there is no such run")
    path = root.joinpath(*parts)
    try:
        found = path.resolve() == path and (path / SPEC).is_file()
    except (OSError, ValueError):  # such as a name that is too long
        found = False
    if not found:
        raise NoSuchRun(f"{shortened(name)}: there is no such run")
    check_own_files(path)
    return path


class Told(NamedTuple):
    """One line of the records, for a sparkline."""

    round: float
    values: dict[str, float | None]


class Watch:
    """Looks at one run again and again, and reads only what has changed."""

    def __init__(self, root: Path, name: str) -> None:
        self.name, self.path = name, root.joinpath(*name.split("/"))
        self.samples: Samples[Told] = Samples(self.path / record.ROUNDS, SPARKS, told)
        self.seen: tuple[object, ...] = ()
        self.row: Row = {}

    def look(self) -> Row:
        process = holder(self.path)
        now = (process, *(stamp_of(self.path / name) for name in WATCHED))
        if now != self.seen:
            self.row, self.seen = self._read(process), now
        return self.row

    def _read(self, process: int | None) -> Row:
        row: Row = {"name": self.name, "state": "failed", "running": process is not None, "problem": None}
        try:
            check_own_files(self.path)
            row |= about(self.path)
        except (UserError, OSError) as error:
            return row | {"problem": str(error)}
        rounds = self.samples.look()
        try:
            row["state"] = state_of(self.path, process)
            row["problem"] = problem_of(self.path) if row["state"] == "failed" else None
        except (UserError, OSError) as error:
            row["problem"] = str(error)
        last = rounds[-1] if rounds else Told(0, {})
        recent = [one.values["seconds"] or 0.0 for one in rounds[-PACED:]]
        running = process is not None and bool(recent)
        return row | {
            "round": last.round,
            "spark": {
                side: [one.values[f"{side}_accuracy"] for one in rounds] for side in ("global", "local")
            },
            **{name: _last_known(rounds, name) for name in ACCURACIES},
            "left": sum(recent) / len(recent) * max(0, row["rounds"] - last.round) if running else None,
            "pending": pending(self.path),
            "deployment": (self.path / DEPLOY).is_dir() or (self.path / OUTCOME).exists(),
            "changed": stamp_of(self.path / record.ROUNDS)[1] // 10**9,
        }


ACCURACIES = ("global_accuracy", "local_accuracy", "local_worst10", "personal_accuracy")


def told(line: bytes) -> Told | None:
    try:
        known = numbers.of_rounds([json.loads(line)], "the run")[0]
    except (ValueError, RecursionError):
        return None
    return Told(known["round"] or 0, {name: known[name] for name in (*ACCURACIES, "seconds")})


def state_of(path: Path, process: int | None) -> str:
    """running, finished, failed or interrupted."""
    if process is not None:
        return "running"
    facts = record.newest_facts(path)
    if facts and facts.get("over"):
        return "finished"
    return "failed" if problem_of(path) else "interrupted"


def problem_of(path: Path) -> str | None:
    """Why a run has failed, in a sentence; None if it has not."""
    if sentence := _text(path / PROBLEM):
        return sentence.strip()
    try:
        found = json.loads(_text(path / OUTCOME) or "{}")
        return shortened(str(found["problem"]), 2000) if found.get("problem") else None
    except (ValueError, RecursionError, AttributeError):
        return None


def pending(path: Path) -> str | None:
    """A demand ratio that was asked for, and not yet taken up."""
    return (_text(path / REQUEST) or "")[:100] or None


def about(path: Path) -> Row:
    """What a spec says of its run."""
    raw = spec_of(path)
    names = {kind: _name(raw.get(kind)) for kind in ("task", "algorithm", "players")}
    rounds = raw.get("rounds")
    return {
        **names,
        "method": defaults.label(names["algorithm"], names["players"]),
        "seed": raw.get("seed") if isinstance(raw.get("seed"), int) else None,
        "rounds": rounds if isinstance(rounds, int) and 0 <= rounds <= numbers.MOST else 0,
    }


def spec_of(path: Path) -> dict[str, Any]:
    try:
        regular(path / SPEC, LARGEST_SPEC)
        return tomllib.loads((path / SPEC).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path / SPEC} is not valid TOML ({shortened(str(error))}); restore it") from None


def _name(table: object) -> str:
    name = table.get("name") if isinstance(table, dict) else None
    return shortened(name, 200) if isinstance(name, str) else "?"


def _last_known(rounds: list[Told], column: str) -> float | None:
    return next((one.values[column] for one in reversed(rounds) if one.values[column] is not None), None)


def _text(path: Path) -> str | None:
    with opened(path) as file:
        return None if file is None else os.pread(file, 4000, 0).decode(errors="replace")


def stamp_of(path: Path) -> tuple[int, int]:
    """Size and time of a file; zeros if it is not there."""
    try:
        facts = path.stat(follow_symlinks=False)
    except OSError:
        return 0, 0
    return facts.st_size, facts.st_mtime_ns
