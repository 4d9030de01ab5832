"""Simulation: both halves of a federation in one process. Workers share their rows."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pagefl.core import cores, jobs, server
from pagefl.core.algorithm import Algorithm, bytes_of
from pagefl.core.block import Block
from pagefl.core.clients import ClientHalf
from pagefl.core.examples import Examples, Splits
from pagefl.core.server import ServerHalf
from pagefl.core.training import batches
from pagefl.devices.costs import Meter
from pagefl.game.follower import Follower
from pagefl.game.leaders import Leaders
from pagefl.game.protocol import Players
from pagefl.trust.attacks.labelflip import labelflip

from . import devices, halves, paths, privacy
from .halves import Say
from .hostile import hostile_clients
from .settings import Settings
from .task import Task
from .workers import CAN_FORK, SharedRows, Workers, flushes_denormals, one_thread

FIRST = np.array([0])


class Simulation:
    """Both halves of a federation. The server reads uploads where the clients have written them."""

    everybody = True  # all clients are at hand in every round

    def __init__(
        self,
        server: ServerHalf,
        clients: ClientHalf,
        block: Block,
        held: Mapping[str, Examples],
        settings: Settings,
    ) -> None:
        """`held`: the clients' examples by role."""
        self.server, self.clients, self.block, self.settings = server, clients, block, settings
        self.held = dict(held)

    def game(self, players: Players) -> tuple[Follower, Leaders]:
        devices.check(self.settings)
        fleet = devices.fleet_of(self.settings, self.server)
        setup = halves.setup_of(self.settings, self.server.clients, devices=fleet)
        terms = halves.terms_of(self.settings)
        policy = players.server_policy(setup)
        if policy.looks_at_uploads:
            # This shows a mistake in `candidates` now, not after the first round's training.
            self.server.candidates(self.clients.numbers[:1])
        own = players.client_policy(setup)
        privacy.check_players(self.settings, policy, own)
        meter = clock = None
        if fleet is not None:
            meter = Meter(fleet, self.server.source.size + bytes_of(own.experience(FIRST)))
            clock = devices.clock_of(self.settings, self.server, fleet, policy)
        leaders = Leaders(self.clients, own, setup, terms, everybody=self.everybody, meter=meter)
        return Follower(self.server, policy, terms, everybody=self.everybody, clock=clock), leaders

    def models(self) -> tuple[Tensor, Tensor]:
        """The shared model and the personal ones."""
        return self.server.model_row, self.block.storage.personal

    def work(self, job: jobs.Job | server.Job) -> object:
        return self.block.work(job) if isinstance(job, jobs.Job) else self.server.work(job)

    def keep(self, job: jobs.Job | server.Job) -> Callable[[], None]:
        return self.block.keep(job) if isinstance(job, jobs.Job) else lambda: None

    @property
    def data(self) -> dict[str, Examples]:
        """The examples by role."""
        return {**self.held, **self.server.data}

    def saved(self) -> None:
        """A checkpoint has been written."""

    @contextmanager
    def with_workers(self, say: Say = lambda line: None) -> Iterator[None]:
        count = worker_count(self.settings)
        if count == 1:
            yield
            return
        workers = Workers(count, self.work, self.keep, say)
        self.block.run = self.server.run_jobs = workers.run
        try:
            yield
        finally:
            workers.close()


def simulate(
    task: Task,
    algorithm: Algorithm,
    settings: Settings,
    say: Say = lambda line: None,
    folder: Path | None = None,
) -> Simulation:
    """`folder`: for rows that do not fit into memory."""
    paths.check_device(settings.device)
    data = split(task, settings)
    module = task.fresh_module(settings.seed)
    begin = halves.start(module, algorithm, settings, data.train, say, task.loss)
    shared = SharedRows(folder)
    if settings.device == "cpu":
        shared.check(begin.row.nbytes * len(data.train))
    allocate = shared if settings.device == "cpu" else partial(torch.zeros, device=settings.device)
    resident = halves.resident(begin, data.of_clients)
    block = halves.block(begin, resident, allocate=allocate)
    client_half = halves.client_half(begin, block)
    server_half = halves.server_half(
        begin, data.of_server, client_half.size, uploads=block.storage.uploads, allocate=allocate
    )
    largest = int(data.train.sizes.max())
    batches.check_room(
        min(client_half.chunk, client_half.size), largest, settings.epochs, settings.batch_size
    )
    if shared.in_file:
        say(f"{shared.in_file / 1e9:.1f} GB of clients' rows lie in a file: memory has no room for them")
    return Simulation(server_half, client_half, block, resident.roles, settings)


def split(task: Task, settings: Settings) -> Splits:
    """The task's data. A hold-out is split off if the settings ask for one and the data have none."""
    data: Splits = task.data
    if settings.attack.name == "labelflip":
        data = labelflip(data, hostile_clients(settings, len(data.train)))
    if not settings.holdout or data.holdout is not None:
        return data
    return data.hold_out(settings.holdout, settings.seed)


def worker_count(settings: Settings) -> int:
    if settings.device != "cpu" or not CAN_FORK:
        return 1
    return settings.workers or cores.available()


@contextmanager
def one_numeric_mode() -> Iterator[None]:
    """Use one thread, and treat tiny numbers as zero. Torch's settings are restored afterwards."""
    threads, flushed = torch.get_num_threads(), flushes_denormals()
    one_thread()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(flushed)
