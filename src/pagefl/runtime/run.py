"""The loop: one federation, one algorithm, its players, round after round, from the start or from a checkpoint."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pandas as pd
from torch import Tensor, nn

from pagefl.core import summary
from pagefl.core.algorithm import Algorithm
from pagefl.core.errors import UserError
from pagefl.core.examples import Examples
from pagefl.core.layout import Layout
from pagefl.game.follower import KNOWN
from pagefl.game.game import Game, NobodyLeft
from pagefl.game.protocol import Players

from . import binding, checkpoint, record
from .demand import Demand
from .directory import SPEC, STAGES, Found, RunDirectory
from .halves import Say
from .rounds import Rounds
from .settings import Settings
from .simulation import Simulation, one_numeric_mode, simulate
from .task import Task
from .workers import memory_errors_named

Observe = Callable[[record.Record], None]


@dataclass
class Run:
    """A run, finished or under way, as its user sees it."""

    rounds: list[record.Record]
    client_rounds: list[record.Record]
    state: dict[str, Tensor]
    make_module: Callable[[], nn.Module]
    directory: Path | None = None
    over: bool = True  # it has come to its end, and was not stopped before
    settings: Settings | None = None  # what it was run with, if it was run here
    name: str = ""  # such as "fedavg on synthetic"
    planned: int | None = None  # rounds
    stopped_by: signal.Signals | None = None  # a Ctrl-C, or a TERM

    @property
    def history(self) -> pd.DataFrame:
        """One row per round."""
        return record.history(self.rounds)

    @property
    def clients(self) -> pd.DataFrame:
        """One row per round and client."""
        return record.by_client(self.client_rounds)

    @property
    def model(self) -> nn.Module:
        """The shared model W."""
        if "server.model" not in self.state:
            raise UserError(f"{self.directory} has no checkpoint yet, so there is no model; let the run go on for longer")
        return self._module(self.state["server.model"])

    def personal(self, client: int) -> nn.Module:
        """A client's own model."""
        if "clients.personal" not in self.state:
            raise UserError(f"client {client}'s own model is on its node: in a deployment it never leaves it")
        rows = self.state["clients.personal"]
        if client not in range(len(rows)):
            raise UserError(f"client = {client}: must be a whole number from 0 to {len(rows) - 1}")
        return self._module(rows[client])

    def __repr__(self) -> str:
        return summary.line(self, self.name, self._facts)

    def _repr_html_(self) -> str:
        return summary.html(self, self.name, self._facts)

    @property
    def _facts(self) -> list[str]:
        rounds = f"{len(self.rounds)} of {self.planned} rounds" if self.planned else f"{len(self.rounds)} rounds"
        found = self.rounds[-1] if self.rounds else {}
        sides = {"global": found.get("global_accuracy"), "local": found.get("local_accuracy")}
        accuracies = [f"{side} accuracy {value:.3f}" for side, value in sides.items() if value is not None]
        return [rounds, *accuracies, *([] if self.directory is None else [str(self.directory)])]

    def _module(self, row: Tensor) -> nn.Module:
        module = self.make_module()
        return Layout(module).fill(module, row).eval()


def play(
    task: Task,
    algorithm: Algorithm,
    settings: Settings,
    players: Players | None = None,
    directory: RunDirectory | None = None,
    observe: Observe = lambda record: None,
    say: Say = lambda message: None,
) -> Run:
    """Run to the last round; where the directory holds a checkpoint, from there."""
    with one_numeric_mode(), memory_errors_named():
        simulation = simulate(task, algorithm, settings, say, directory.path if directory else None)
        game = Game(*simulation.game(players or Players()))
        make_module = partial(task.fresh_module, settings.seed)
        return loop(game, simulation.data, make_module, settings, directory, observe, say, simulation=simulation)


def loop(
    game: Game,
    data: Mapping[str, Examples],
    make_module: Callable[[], nn.Module],
    settings: Settings,
    directory: RunDirectory | None,
    observe: Observe,
    say: Say,
    *,
    simulation: Simulation | None = None,
) -> Run:
    """Round after round, with records and checkpoints. `data`: what this process holds, by role.

    In a simulation, a Ctrl-C lets the round under way come to its end.
    """
    path = directory.path if directory else None
    models = None if simulation is None else simulation.models
    with directory.open(say) if directory else nullcontext():
        found = directory.last(say) if directory else None
        bound = binding.facts_of(settings, data, make_module()) if directory else {}
        if directory and found:
            _check_found(found, bound, settings, directory.path / SPEC)
        rounds = Rounds(game, settings, Demand(settings.shifts(), path, say), models)
        if found:
            rounds.restore(found.tensors, found.facts)
        if directory:
            directory.go_on(found, settings.rounds)
        records = record.Records(path, found.held if found else None)

        def save() -> None:
            if directory:
                claims = {**records.sync(), **rounds.demand.vouched()}
                checkpoint.save(directory.path, rounds.state(), {**rounds.facts(), **bound, "records": claims})

        def keep_stage() -> None:
            if directory and settings.stages_every and rounds.round % settings.stages_every == 0 and not rounds.over:
                stage = directory.path / STAGES / f"{rounds.round:06}"
                stage.mkdir(parents=True, exist_ok=True)
                checkpoint.save(stage, rounds.state(), {**rounds.facts(), **bound})

        with (
            simulation.with_workers(say) if simulation else nullcontext(),
            _polite_stop() if simulation else nullcontext(Stop()) as stop,
        ):
            try:
                if not found or found.facts.get("over") != rounds.over:  # before any record that it does not vouch for
                    save()
                saved, saved_round = monotonic(), rounds.round
                while not rounds.over and not stop.asked:
                    entry, clients = rounds.play()
                    every = settings.clients_every
                    records.write(entry, clients if every and rounds.round % every == 0 else None)
                    if monotonic() - saved >= settings.checkpoint_seconds:
                        save()
                        saved, saved_round = monotonic(), rounds.round
                    keep_stage()
                    observe(entry)
                if saved_round < rounds.round:
                    save()
            except NobodyLeft:
                save()
                raise
            finally:
                records.close()
        if rounds.equilibrium:
            say(f"converged in round {rounds.round}: models and pay-offs did not move for {settings.equilibrium_window} rounds")
        state = {name: value for name, value in game.state().items() if not name.startswith(KNOWN)}  # all that is trained
    return Run(
        records.rounds,
        records.clients,
        state,
        make_module,
        path,
        rounds.over,
        settings,
        planned=settings.rounds,
        stopped_by=None if rounds.over else stop.asked,
    )


def _check_found(found: Found, bound: dict[str, Any], settings: Settings, spec: Path) -> None:
    binding.check(bound, found.facts, spec)
    if settings.rounds < (reached := found.facts["round"]):
        raise UserError(f"rounds = {settings.rounds}: the run is already at round {reached}; choose at least {reached}")


@dataclass
class Stop:
    """Whether a run has been asked to end after its round."""

    asked: signal.Signals | None = None


@contextmanager
def _polite_stop() -> Iterator[Stop]:
    """The first Ctrl-C (or TERM) ends the run after its round, with a checkpoint; the second ends it at once."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: object) -> None:
        if stop.asked:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        stop.asked = signal.Signals(number)

    kept = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
