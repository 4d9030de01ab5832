"""Runs many specs in parallel. A crash does not stop the other runs, and finished runs are not repeated.

A run's directory is named after a hash of its spec. The same command, started again, continues where it
stopped. Several machines can work on a shared folder, because the process that runs a spec locks its
directory.
"""

import json
import multiprocessing
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import product
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from pagefl.core.errors import UserError
from pagefl.runtime import numbers, record
from pagefl.runtime.directory import InUse, RunDirectory
from pagefl.runtime.loop import play
from pagefl.runtime.settings import NO_MATTER

from . import ledger
from . import spec as specs
from .spec import RunSpec

FINISHED = "finished"  # a file in the run's directory
VERSION = 3  # version of the results: a new one repeats every run
LOOK_SECONDS = 1.0
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
    jobs: int,
    watch: Watch = lambda progress: None,
    kept: Path | None = None,
) -> Progress:
    """Run until every run has finished or failed. A Ctrl-C stops after the current rounds.

    `kept`: a ledger. Its runs are not repeated, and each run that finishes is written to it.
    """
    entries = {name_of(spec): spec for spec in wanted}
    progress = Progress(len(entries), sum(spec.rounds for spec in entries.values()))
    folder.mkdir(parents=True, exist_ok=True)
    written = set(ledger.read(kept)) if kept else set()
    waiting = [name for name in entries if name not in written and not (folder / name / FINISHED).exists()]
    workers = max(1, len(os.sched_getaffinity(0)) // jobs)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    running: dict[Connection, tuple[str, BaseProcess]] = {}

    def start(name: str) -> None:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(
            target=_work, args=(theirs, entries[name].model_dump(), str(folder / name), workers)
        )
        with _no_main_module():
            process.start()
        theirs.close()
        running[ours] = (name, process)

    def look() -> None:
        done = {name for name in entries if name in written or (folder / name / FINISHED).exists()}
        for name in sorted(done - written):
            if kept:
                ledger.append(kept, name, record.read(folder / name)[0])
            written.add(name)
        progress.finished = len(done)
        progress.rounds_done = sum(
            spec.rounds if name in done else rounds_done(folder / name) for name, spec in entries.items()
        )
        watch(progress)

    stopping = False
    try:
        look()
        while waiting or running:
            while waiting and len(running) < jobs and not stopping:
                start(waiting.pop(0))
            try:
                for pipe in wait(list(running), timeout=LOOK_SECONDS):
                    assert isinstance(pipe, Connection)
                    name, process = running.pop(pipe)
                    if problem := _outcome(pipe, process):
                        progress.failed[name] = problem
                look()
            except KeyboardInterrupt:
                if stopping:
                    raise
                stopping, waiting = True, []  # the Ctrl-C has reached the runs too
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():  # each finishes its round first
            process.join()
    if stopping:
        raise KeyboardInterrupt
    return progress


@contextmanager
def _no_main_module() -> Iterator[None]:
    """Hide the caller's script. Otherwise multiprocessing would execute it again for every run."""
    kept = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = kept


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
            found.append(Found(name, spec, record.read(folder / name)[0], folder / name))
        elif name in written:
            found.append(Found(name, spec, written[name], folder / name))
    for one in found:
        if not one.rounds:
            raise UserError(
                f"{one.path} is marked as finished but has no rounds; delete it, and it is run again"
            )
    return found


def of(specs: Iterable[RunSpec], found: Iterable[Found]) -> list[Found]:
    """The finished runs of these specs, in the order of the specs."""
    by_name = {one.name: one for one in found}
    return [by_name[name] for name in map(name_of, specs) if name in by_name]


def _outcome(pipe: Connection, process: BaseProcess) -> str | None:
    """What went wrong; None if nothing did."""
    try:
        problem: str | None = pipe.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        problem = f"its process died of {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"
    process.join()
    return problem


def _work(pipe: Connection, raw: dict[str, Any], folder: str, workers: int) -> None:
    """Run one spec in its own process."""
    spec, path = RunSpec(**{**raw, "workers": workers}), Path(folder)
    try:
        done = play(
            spec.make_task(),
            spec.make_algorithm(),
            spec,
            spec.make_players(),
            RunDirectory(path, spec.toml()),
        )
        if done.over:
            (path / FINISHED).touch()
        pipe.send(None)
    except InUse:  # another sweep is running it
        pipe.send(None)
    except UserError as error:
        pipe.send(str(error))
    except OSError as error:
        pipe.send(f"{error.filename or path}: {error.strerror or error}; what is written is not lost")
    except Exception as error:  # a bug in one run must not stop the others
        pipe.send(f"{type(error).__name__}: {error}")
