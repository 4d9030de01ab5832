"""Compares runs, on disk or in memory. Each run counts once, and only runs on the same data are compared."""

import os
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pagefl.core.errors import UserError
from pagefl.runtime import record
from pagefl.runtime.directory import SPEC
from pagefl.runtime.halves import Say
from pagefl.runtime.own_files import check_own_files
from pagefl.runtime.run import Run
from pagefl.runtime.settings import NO_MATTER

from . import spec as specs
from . import statistics
from .spec import RunSpec

UNSEEN = (*NO_MATTER, "clients_every", "stages_every")  # settings that do not change results
CONDITIONS = ("rounds", "participation", "protocol")  # part of method names if methods differ in them
COLUMNS = ("task", "data", "method", "seed", "run", "finished", *statistics.METRICS, *statistics.CONVERGENCE)
Flat = dict[str, Any]


class Recorded(NamedTuple):
    """A recorded run."""

    name: str  # its directory, or its position in the caller's list
    spec: RunSpec
    rounds: list[record.Record]
    finished: bool


def gather(sources: Sequence[str | Path | Run], say: Say) -> list[Recorded]:
    """Collect runs from run directories, folders at any depth, and memory. Each directory counts once."""
    found: list[Recorded] = []
    seen: set[Path] = set()
    for number, source in enumerate(sources, 1):
        path = source.directory if isinstance(source, Run) else Path(source)
        if path is None:
            assert isinstance(source, Run)
            found.append(_in_memory(source, f"run {number}"))
            continue
        if not path.exists():
            raise UserError(f"{path}: there is no such directory")
        directories = list(_directories(path, seen))
        if not directories:
            say(f"left out: {path}: no run in it" + (" that is not already counted" if found else ""))
        found += map(_on_disk, directories)
    if not found:
        raise UserError(
            "compare: no run found; expected directories that `pagefl run` or `pagefl sweep` made"
        )
    return found


def by_run(runs: Sequence[Recorded], say: Say) -> pd.DataFrame:
    """One row per run: data, method, seed and results. Unfinished runs have no results, copies no row."""
    all_specs = [run.spec for run in runs]
    rows = zip(runs, data_settings(all_specs), methods(all_specs), strict=True)
    first: dict[tuple[str, str, int], Recorded] = {}
    parts = []
    # The most complete run comes first, its copies later.
    for run, data, method in sorted(rows, key=lambda row: (not row[0].finished, -len(row[0].rounds))):
        known = first.setdefault((data, method, run.spec.seed), run)
        if known is not run:
            _check_copy(known, run)
            say(f"left out: {run.name}: a copy of {known.name} (same settings, same seed)")
            continue
        if run.finished:
            part = statistics.by_run([(run.spec, run.rounds)])
        else:
            say(f"left out: {run.name}: unfinished, round {len(run.rounds)} of {run.spec.rounds}")
            part = pd.DataFrame({"seed": [run.spec.seed], "finished": [False]})
        parts.append(part.assign(task=run.spec.task["name"], data=data, method=method, run=run.name))
    order = {run.name: at for at, run in enumerate(runs)}
    frame = pd.concat(parts).sort_values("run", key=lambda names: names.map(order), ignore_index=True)
    return frame.reindex(columns=list(COLUMNS))


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per method and data setting."""
    parts = []
    for data, own in frame.groupby("data", sort=False):
        made = statistics.summary(own)
        made.insert(0, "data", data)
        made.insert(0, "task", own["task"].iloc[0])
        parts.append(made)
    return pd.concat(parts, ignore_index=True)


def data_settings(all_specs: Sequence[RunSpec]) -> list[str]:
    """Names for the data of each run: the task, with the settings that differ between its runs."""
    flat = [_flat({**spec.task, "holdout": spec.holdout}) for spec in all_specs]
    varied = _varied(flat, [own["name"] for own in flat])
    return [_call(own["name"], own, varied[own["name"]]) for own in flat]


def methods(all_specs: Sequence[RunSpec]) -> list[str]:
    """Names for the method of each run.

    Runs on the same data have the same name only if nothing but their seed differs.
    """
    data = data_settings(all_specs)
    flat = [_flat(spec.model_dump(exclude={"seed", "task", "holdout", *UNSEEN})) for spec in all_specs]
    labels = [spec.label for spec in all_specs]
    within, between = _varied(flat, list(zip(data, labels, strict=True))), _varied(flat, data)
    return [
        _call(label, own, within[where, label] | (between[where] & set(CONDITIONS)))
        for where, label, own in zip(data, labels, flat, strict=True)
    ]


def _varied(flat: Sequence[Flat], groups: Sequence[Hashable]) -> dict[Hashable, set[str]]:
    """The settings that differ within each group."""
    first: dict[Hashable, Flat] = {}
    found: dict[Hashable, set[str]] = defaultdict(set)
    for group, own in zip(groups, flat, strict=True):
        other = first.setdefault(group, own)
        found[group] |= {
            key
            for key in own.keys() | other.keys()
            if key not in own or key not in other or own[key] != other[key]
        }
    return found


def _call(name: str, own: Flat, keys: set[str]) -> str:
    return ", ".join([name, *(f"{key} = {own[key]}" for key in own if key in keys)])


def _flat(raw: dict[str, Any], prefix: str = "") -> Flat:
    parts = (
        _flat(v, f"{prefix}{key}.") if isinstance(v, dict) else {prefix + key: v} for key, v in raw.items()
    )
    return {key: value for part in parts for key, value in part.items()}


def _directories(path: Path, seen: set[Path]) -> Iterator[Path]:
    """New run directories at or under a path. Links are followed, and no directory is visited twice."""
    real = path.resolve()
    if real in seen or not path.is_dir():
        return
    seen.add(real)
    if os.path.lexists(path / SPEC):
        yield path
        return
    for child in sorted(entry.path for entry in os.scandir(path) if entry.is_dir()):
        yield from _directories(Path(child), seen)


def _on_disk(path: Path) -> Recorded:
    check_own_files(path)
    spec, rounds = specs.recorded(path / SPEC), record.read(path)[0]
    finished = len(rounds) >= spec.rounds
    if rounds and not finished and spec.stop == "equilibrium":
        facts = record.newest_facts(path)
        finished = facts is not None and facts.get("equilibrium") is not None
    return Recorded(str(path), spec, rounds, finished)


def _in_memory(run: Run, name: str) -> Recorded:
    if not isinstance(run.settings, RunSpec):
        raise UserError(
            f"compare: {name} has no spec; expected what `pagefl.run` returned, or a run directory"
        )
    return Recorded(name, run.settings, run.rounds, run.over)


def _check_copy(first: Recorded, other: Recorded) -> None:
    """Two runs of one spec and seed must have equal records, as far as both have played."""
    told, again = statistics.curves(first.rounds), statistics.curves(other.rounds)
    for name, curve in again.items():
        if not np.array_equal(told[name][: len(curve)], curve, equal_nan=True):
            raise UserError(
                f"{first.name} and {other.name} have the same settings and seed but different records "
                f"({name}); leave one out"
            )
