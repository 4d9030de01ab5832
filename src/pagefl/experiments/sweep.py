"""Runs many specs in parallel. A crash does not stop the other runs, and finished runs are not repeated.

A run's directory is named after a hash of its spec. The same command, started again, continues where it
stopped. Several machines can work on a shared folder, because the process that runs a spec locks its
directory.
"""

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import product
from pathlib import Path
from time import sleep
from typing import NamedTuple

from pagefl.core.errors import UserError
from pagefl.runtime import numbers, record
from pagefl.runtime.loop import play
from pagefl.runtime.settings import NO_MATTER

from . import executors, ledger, speeds
from . import spec as specs
from .executors import Place
from .executors.one_run import FINISHED, Ending, Task
from .spec import RunSpec

VERSION = 3  # version of the results: a new one repeats every run
LOOK_SECONDS = 1.0
LOOKS = 5  # for a file that another machine has written
MEASURED_CLIENTS, MEASURED_ROUNDS = 4, 3
QUICK_SECONDS, ENOUGH_SECONDS = 2.0, 20.0


@dataclass
class Progress:
    """Progress of the whole sweep."""

    runs: int
    rounds: int
    finished: int = 0
    rounds_done: int = 0
    failed: dict[str, str] = field(default_factory=dict)  # run, and what went wrong in a sentence


Watch = Callable[[Progress], None]
NO_BUDGETS = {"budget": 0.0, "budget_of": "seconds", "server_budget": 0.0}  # of players: they came later


def name_of(spec: RunSpec) -> str:
    """A readable name. It ends with a hash of everything that affects the result.

    A setting that came later than some results counts only if it is set: their names stay the same.
    """
    before = spec.of_before()
    matters = {
        name: value
        for name, value in spec.model_dump().items()
        if name not in NO_MATTER and not (name in before and value == before[name])
    }
    matters["players"] = {
        name: value for name, value in matters["players"].items() if NO_BUDGETS.get(name) != value
    }
    digest = sha256(json.dumps([VERSION, matters], sort_keys=True).encode()).hexdigest()
    return f"{spec.task['name']}-{spec.label}-s{spec.seed}-{digest[:12]}"


def grid(raw: specs.Raw) -> list[RunSpec]:
    """Every combination of the lists under `sweep`. The other settings are the same for all."""
    lists = raw.get("sweep", {})
    if (
        not isinstance(lists, dict)
        or not lists
        or not all(isinstance(values, list) and values for values in lists.values())
    ):
        raise UserError(
            'sweep: expected a table of lists, such as algorithm = ["fedavg", "page"] and seed = [0, 1, 2]'
        )
    common = {name: value for name, value in raw.items() if name != "sweep"}
    found = []
    for choice in product(*lists.values()):
        one = dict(common)
        for name, value in zip(lists, choice, strict=True):
            specs.put(one, name, value)
        found.append(specs.resolve(one))
    return found


def run_missing(
    wanted: Iterable[RunSpec],
    folder: Path,
    jobs: int = 0,
    watch: Watch = lambda progress: None,
    kept: Path | None = None,
    place: Place = Place(),  # noqa: B008 (nothing can change it)
) -> Progress:
    """Run until every run has finished or failed. A Ctrl-C stops after the current rounds.

    `jobs`: runs at once; 0 for one per core, and on a cluster for as many as it has room for. `kept`: a
    ledger. Its runs are not repeated, and each run that finishes is written to it.
    """
    entries = {name_of(spec): spec for spec in wanted}
    progress = Progress(len(entries), sum(spec.rounds for spec in entries.values()))
    folder.mkdir(parents=True, exist_ok=True)
    written = set(ledger.read(kept)) if kept else set()
    waiting = [
        Task(name, spec.toml(), str((folder / name).absolute()), spec.workers, spec.device != "cpu")
        for name, spec in entries.items()
        if name not in written and not (folder / name / FINISHED).exists()
    ]

    def look() -> None:
        done = {name for name in entries if name in written or (folder / name / FINISHED).exists()}
        for name in sorted(done - written):
            if kept:
                ledger.append(kept, name, rounds_of(folder / name, entries[name]))
            written.add(name)
        progress.finished = len(done)
        progress.rounds_done = sum(
            spec.rounds if name in done else rounds_done(folder / name) for name, spec in entries.items()
        )
        watch(progress)

    look()
    if not waiting:
        return progress
    with executors.opened(place, jobs, folder) as executor:
        stopping = False
        while waiting or executor.running:
            if not stopping and (room := executor.room) > 0:
                now, waiting = waiting[:room], waiting[room:]
                executor.start(now)
            try:
                for name, ending in executor.ended(LOOK_SECONDS):
                    if problem := _problem(ending, folder / name):
                        progress.failed[name] = problem
                look()
            except KeyboardInterrupt:
                if stopping:
                    raise
                stopping, waiting = True, []
                executor.interrupt()
    if stopping:
        raise KeyboardInterrupt
    return progress


def _problem(ending: Ending, path: Path) -> str | None:
    """What went wrong; None if nothing did. A network's file system may show a file a little later."""
    if ending.finished:
        for _ in range(LOOKS):
            if path.parent.is_dir() and FINISHED in (os.listdir(path) if path.is_dir() else ()):
                return None
            sleep(LOOK_SECONDS)
        return (
            f"it finished on {ending.node}, but {path} is not to be seen from here; choose a folder that all "
            "nodes share"
        )
    return ending.problem


def cost(wanted: Iterable[RunSpec], folder: Path, kept: Path | None = None) -> dict[str, float]:
    """Estimated seconds of the missing runs on this machine, one after the other, by task and method.

    A round is measured with a few clients and scaled to all. If it is quick, it is measured with all clients.
    """
    missing: dict[str, list[RunSpec]] = defaultdict(list)
    written = ledger.read(kept) if kept else {}
    for name, spec in {name_of(spec): spec for spec in wanted}.items():
        if name not in written and not (folder / name / FINISHED).exists():
            missing[f"{spec.label} on {spec.task['name']}"].append(spec)
    seconds = {}
    for what, specs_of in missing.items():
        first = specs_of[0]
        clients = first.task["clients"] or len(first.make_task().data.train)  # 0 for all
        few = min(MEASURED_CLIENTS, clients)
        round_seconds = _a_round(first, few) * clients / few
        if round_seconds < QUICK_SECONDS:
            round_seconds = _a_round(first, clients)
        seconds[what] = round_seconds * sum(
            max(0, spec.rounds - rounds_done(folder / name_of(spec))) for spec in specs_of
        )
    return seconds


def _a_round(spec: RunSpec, clients: int) -> float:
    """Seconds of the fastest of a few rounds, or of fewer if they are slow.

    The first rounds also compile kernels and include the start of FedALA.
    """
    short = spec.model_copy(update={"rounds": MEASURED_ROUNDS, "task": {**spec.task, "clients": clients}})
    seconds: list[float] = []

    def observe(entry: record.Record) -> None:
        seconds.append(entry["seconds"])
        if sum(seconds) > ENOUGH_SECONDS:
            raise _Measured

    with suppress(_Measured):
        play(short.make_task(), short.make_algorithm(), short, short.make_players(), observe=observe)
    return min(seconds)


class _Measured(Exception):
    """Raised when rounds have been measured for long enough."""


def rounds_done(path: Path) -> int:
    """The last round in the records; 0 if they cannot be read."""
    if not (path / record.ROUNDS).is_file():  # a pipe would never end
        return 0
    try:
        with (path / record.ROUNDS).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 20_000))
            lines = [line for line in file.read().splitlines(keepends=True) if line.endswith(b"\n")]
        return int(numbers.of_rounds([json.loads(lines[-1])], str(path))[0]["round"] or 0) if lines else 0
    except (OSError, ValueError, RecursionError):  # reported where the records are needed
        return 0


class Found(NamedTuple):
    """A finished run."""

    name: str
    spec: RunSpec
    rounds: list[record.Record]
    path: Path


def finished(wanted: Iterable[RunSpec], folder: Path, kept: Path | None = None) -> list[Found]:
    """The runs that have finished. Those that only a ledger knows have no directory."""
    written = ledger.read(kept) if kept else {}
    found = []
    for name, spec in {name_of(spec): spec for spec in wanted}.items():
        if (folder / name / FINISHED).exists():
            found.append(Found(name, spec, rounds_of(folder / name, spec), folder / name))
        elif name in written:
            found.append(Found(name, spec, written[name], folder / name))
    for one in found:
        if not one.rounds:
            raise UserError(
                f"{one.path} is marked as finished but has no rounds; delete it, and it is run again"
            )
    return found


def rounds_of(path: Path, spec: RunSpec) -> list[record.Record]:
    """A finished run's records. The last one tells how fast and slow clients fared, if there is a clock."""
    rounds, clients = record.read(path)
    if clients and "clock" in rounds[-1]:
        rounds[-1] |= speeds.of_clients(clients, spec.devices.deadline)
    return rounds


def of(specs: Iterable[RunSpec], found: Iterable[Found]) -> list[Found]:
    """The finished runs of these specs, in the order of the specs."""
    by_name = {one.name: one for one in found}
    return [by_name[name] for name in map(name_of, specs) if name in by_name]
