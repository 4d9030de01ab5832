"""The loop: one federation, one algorithm, its players, round after round, from the start or from a checkpoint."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from pagefl.core import batches, checks, linear, rng, summary
from pagefl.core.algorithm import Algorithm
from pagefl.core.engine import Training
from pagefl.core.errors import UserError
from pagefl.core.examples import Splits
from pagefl.core.federation import Federation
from pagefl.core.layout import Layout
from pagefl.core.memory import needs
from pagefl.game.game import FederatedGame, Terms
from pagefl.game.players import FixedPlayers, Players, Setup

from . import binding, checkpoint, paths, record
from .demand import Demand
from .directory import SPEC, STAGES, Found, RunDirectory
from .rounds import NobodyLeft, Rounds
from .settings import Settings
from .task import Task
from .workers import CAN_FORK, SharedRows, Workers, flushes_denormals, memory_errors_named, one_thread

ROWS_AT_WORK = 6  # at least: two rows, their gradients, the module and a copy of it
Say = Callable[[str], None]
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
        federation = make_federation(task, algorithm, settings, say, directory.path if directory else None)
        game = make_game(federation, players or FixedPlayers(), settings)
        return loop(game, partial(task.fresh_module, settings.seed), settings, directory, observe, say)


def loop(
    game: FederatedGame,
    make_module: Callable[[], nn.Module],
    settings: Settings,
    directory: RunDirectory | None,
    observe: Observe,
    say: Say,
    *,
    polite: bool = True,
) -> Run:
    """Round after round, with records and checkpoints. `polite`: a Ctrl-C lets the round under way come to its end."""
    path = directory.path if directory else None
    with directory.open(say) if directory else nullcontext():
        found = directory.last(say) if directory else None
        bound = binding.facts_of(settings, game.federation.data, make_module()) if directory else {}
        if directory and found:
            _check_found(found, bound, settings, directory.path / SPEC)
        rounds = Rounds(game, settings, Demand(settings.shifts(), path, say))
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

        with with_workers(game.federation, settings, say), _polite_stop() if polite else nullcontext(Stop()) as stop:
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
            say(f"at rest in round {rounds.round}: for {settings.equilibrium_window} rounds neither models nor pay-offs moved")
        state = {**game.federation.state(), **game.tensors}
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


def worker_count(settings: Settings) -> int:
    if settings.device != "cpu" or not CAN_FORK:
        return 1
    return settings.workers or len(os.sched_getaffinity(0))


def make_federation(
    task: Task,
    algorithm: Algorithm,
    settings: Settings,
    say: Say = lambda message: None,
    folder: Path | None = None,
    *,
    kind: Callable[..., Federation] = Federation,
    first: int = 0,
    **options: Any,
) -> Federation:
    """`folder`: for rows that memory has no room for. `first`: the number of the first client."""
    paths.check_device(settings.device)
    data = split(task, settings)
    module = task.fresh_module(settings.seed)
    shared = SharedRows(folder)
    width = sum(parameter.nbytes for parameter in module.parameters())
    needs(ROWS_AT_WORK * width, "the weights, gradients and copies of one model", "use a smaller model")
    if settings.device == "cpu":
        shared.check(width * len(data.train))
    data = data.of_type(Layout(module).dtype)
    with rng.torch_stream(settings.seed, "measuring"):
        model = paths.build(module, data.train.x[: settings.batch_size], settings.path, settings.device)
    if not linear.compiled():
        say("compiling the kernels (once; kept in numba's cache) …")
    federation = kind(
        model,
        algorithm,
        data,
        Training(settings.seed, settings.lr, settings.batch_size, settings.weight_decay, settings.clip, first),
        row=model.layout.row(module),
        chunk=settings.chunk or None,
        look=settings.look,
        allocate=shared if settings.device == "cpu" else partial(torch.zeros, device=settings.device),
        **options,
    )
    largest = int(federation.data["train"].sizes.max())
    batches.check_room(min(federation.chunk, federation.size), largest, settings.epochs, settings.batch_size)
    if shared.in_file:
        say(f"{shared.in_file / 1e9:.1f} GB of clients' rows lie in a file: memory has no room for them")
    return federation


def split(task: Task, settings: Settings) -> Splits:
    """With a hold-out where the settings want one, unless the data have their own."""
    if not settings.holdout or task.data.holdout is not None:
        return task.data
    return task.data.hold_out(settings.holdout, settings.seed)


def make_game(federation: Federation, players: Players, settings: Settings) -> FederatedGame:
    setup, terms = agreed(federation, settings)
    leaders, follower = players.sides(setup)
    if follower.sees:  # better now than after the first round's training
        checks.candidates(federation.algorithm, federation.sent["model"], federation.uploads_of(np.array([0])), 1)
    return FederatedGame(federation, leaders, follower, setup, terms)


def agreed(federation: Federation, settings: Settings, first: int = 0) -> tuple[Setup, Terms]:
    """What players are told, and what is fixed, before the game begins."""
    setup = Setup(
        clients=federation.size,
        sizes=federation.data["train"].sizes.numpy(),
        rounds=settings.rounds,
        seed=settings.seed,
        lr=settings.lr,
        epochs=settings.epochs,
        released=settings.protocol == "released",
        first=first,
    )
    terms = Terms(
        penalty=settings.reward_penalty,
        reward=settings.reward,
        protocol=settings.protocol,
        freeze=frozenset(settings.freeze),
        participation=settings.participation,
    )
    return setup, terms


@contextmanager
def with_workers(federation: Federation, settings: Settings, say: Say) -> Iterator[None]:
    count = worker_count(settings)
    if count == 1:
        yield
        return
    workers = Workers(count, federation.work, federation.keep, say)
    federation.run_jobs = workers.run
    try:
        yield
    finally:
        workers.close()


@contextmanager
def one_numeric_mode() -> Iterator[None]:
    """One thread, and tiny numbers count as zero; afterwards torch is as it was found."""
    threads, flushed = torch.get_num_threads(), flushes_denormals()
    one_thread()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(flushed)


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
