"""The main loop: plays round after round, and writes records and checkpoints."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from torch import nn

from pagefl.core.algorithm import Algorithm
from pagefl.core.errors import UserError
from pagefl.core.examples import Examples
from pagefl.core.server import ServerHalf
from pagefl.game.follower import KNOWN
from pagefl.game.game import Game, NobodyLeft
from pagefl.game.protocol import Players
from pagefl.trust.privacy.randomness import Simulated, System

from . import binding, checkpoint, devices, record
from .demand import Demand
from .directory import SPEC, STAGES, Found, RunDirectory
from .halves import Say
from .hostile import with_hostile
from .metrics import Metric, check, measured
from .privacy import PrivateRun
from .rounds import Measure, Rounds
from .run import Observe, Run
from .settings import Settings
from .simulation import Simulation, one_numeric_mode, simulate
from .task import Task
from .workers import kept_memory, memory_errors_named

LARGE_DELTA = 0.1  # times the number of clients


def play(
    task: Task,
    algorithm: Algorithm,
    settings: Settings,
    players: Players | None = None,
    directory: RunDirectory | None = None,
    observe: Observe = lambda record: None,
    say: Say = lambda message: None,
    metrics: Sequence[Metric] = (),
) -> Run:
    """Run to the last round, from the checkpoint in the directory if there is one."""
    check(metrics, algorithm, settings.executor)
    with one_numeric_mode(), kept_memory(), memory_errors_named():
        simulation = _simulate(task, algorithm, settings, say, directory.path if directory else None)
        follower, leaders = simulation.game(players or Players())
        game = Game(follower, with_hostile(leaders, simulation.server, settings))
        make_module = partial(task.fresh_module, settings.seed)
        return loop(
            game,
            simulation.data,
            make_module,
            settings,
            directory,
            observe,
            say,
            simulation=simulation,
            measure=lambda: measured(metrics, simulation),
        )


def _simulate(
    task: Task, algorithm: Algorithm, settings: Settings, say: Say, folder: Path | None
) -> Simulation:
    if task.source is not None:
        from . import cross_device

        return cross_device.simulate(task, task.source, algorithm, settings, say, folder)
    if settings.executor == "ray":
        from . import cluster

        return cluster.simulate(task, algorithm, settings, say)
    return simulate(task, algorithm, settings, say, folder)


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
    measure: Measure = dict,
) -> Run:
    """Play to the last round, from the checkpoint in the directory if there is one.

    `data`: the examples of this process, by role. In a simulation, a Ctrl-C lets the current round finish.
    """
    path = directory.path if directory else None
    models = None if simulation is None else simulation.models
    with directory.open(say) if directory else nullcontext():
        bound = binding.facts_of(settings, data, make_module(), game.follower.half.model) if directory else {}
        classes = devices.classes_of(game.follower)
        bound |= {"classes": classes.facts} if classes else {}
        found = _last(directory, bound, settings, say) if directory else None
        private = _private(settings, game.follower.half, simulation is not None, say)
        demand = Demand(settings.shifts(), path, say)
        rounds = Rounds(game, settings, demand, models, say, private, measure)
        saved = simulation.saved if simulation else lambda: None
        journal = Journal(rounds, directory, bound, found, saved)
        with (
            simulation.with_workers(say) if simulation else nullcontext(),
            _polite_stop() if simulation else nullcontext(Stop()) as stop,
        ):
            journal.play(observe, stop)
            # all that is trained
            state = {name: value for name, value in game.state().items() if not name.startswith(KNOWN)}
        if rounds.equilibrium:
            say(
                f"converged in round {rounds.round}: models and pay-offs did not move for "
                f"{settings.equilibrium_window} rounds"
            )
        if private and rounds.over and rounds.round < settings.rounds:
            say(private.ending())
    return Run(
        journal.records.rounds,
        journal.records.clients,
        state,
        make_module,
        path,
        rounds.over,
        settings,
        planned=settings.rounds,
        stopped_by=None if rounds.over else stop.asked,
        path=game.follower.half.model.how,
        classes=classes,
    )


def _private(settings: Settings, half: ServerHalf, simulated: bool, say: Say) -> PrivateRun | None:
    if not settings.privacy.epsilon:
        return None
    if settings.privacy.delta * half.clients > LARGE_DELTA:
        say(
            f"privacy.delta = {settings.privacy.delta:g}: with {half.clients} clients, it should be well "
            f"below {1 / half.clients:g}"
        )
    return PrivateRun(settings, half, Simulated(settings.seed) if simulated else System())


def _last(directory: RunDirectory, bound: dict[str, Any], settings: Settings, say: Say) -> Found | None:
    """The checkpoint to continue from, if there is one. It must belong to these settings and data."""
    found = directory.last(say)
    if found:
        binding.check(bound, found.facts, directory.path / SPEC, say)
        if settings.rounds < (reached := found.facts["round"]):
            raise UserError(
                f"rounds = {settings.rounds}: the run is already at round {reached}; choose at least "
                f"{reached}"
            )
    return found


class Journal:
    """Writes a record for every round, and checkpoints to continue from."""

    def __init__(
        self,
        rounds: Rounds,
        directory: RunDirectory | None,
        bound: dict[str, Any],
        found: Found | None,
        saved: Callable[[], None],
    ) -> None:
        """`bound`: settings and data that checkpoints belong to. `found`: checkpoint to continue from.
        `saved`: called when a checkpoint has been written."""
        self.rounds, self.settings, self.directory, self.bound = rounds, rounds.settings, directory, bound
        self.after_saving = saved
        self.records = record.Records(directory.path if directory else None, found.held if found else None)
        if found:
            rounds.restore(found.tensors, found.facts)
        if directory:
            directory.go_on(found, self.settings.rounds)
        self.records.open()
        # The checkpoint is up to date.
        self.whole = found is not None and found.facts.get("over") == rounds.over
        self.saved, self.saved_round = monotonic(), rounds.round

    def play(self, observe: Observe, stop: "Stop") -> None:
        rounds, every = self.rounds, self.settings.clients_every
        try:
            if not self.whole:  # a checkpoint must exist before any new record
                self.save()
            while not rounds.over and not stop.asked:
                entry, clients = rounds.play()
                self.records.write(entry, clients if every and rounds.round % every == 0 else None)
                if monotonic() - self.saved >= self.settings.checkpoint_seconds:
                    self.save()
                self.keep_stage()
                observe(entry)
            if self.saved_round < rounds.round:
                self.save()
        except Exception as error:
            if self.directory:
                self.directory.note_problem(error)
            if isinstance(error, NobodyLeft):
                self.save()
            raise
        finally:
            self.records.close()

    def save(self) -> None:
        if self.directory:
            claims = {**self.records.sync(), **self.rounds.demand.vouched()}
            facts = {**self.rounds.facts(), **self.bound, "records": claims}
            checkpoint.save(self.directory.path, self.rounds.state(), facts)
        self.after_saving()
        self.saved, self.saved_round = monotonic(), self.rounds.round

    def keep_stage(self) -> None:
        """Keep a checkpoint for `pagefl verify`, if the settings ask for it."""
        round, every = self.rounds.round, self.settings.stages_every
        if self.directory and every and round % every == 0 and not self.rounds.over:
            stage = self.directory.path / STAGES / f"{round:06}"
            stage.mkdir(parents=True, exist_ok=True)
            checkpoint.save(stage, self.rounds.state(), {**self.rounds.facts(), **self.bound})


@dataclass
class Stop:
    """Whether a run was asked to stop after its round."""

    asked: signal.Signals | None = None


@contextmanager
def _polite_stop() -> Iterator[Stop]:
    """The first Ctrl-C (or SIGTERM) stops the run after its round, with a checkpoint; the second at once."""
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
