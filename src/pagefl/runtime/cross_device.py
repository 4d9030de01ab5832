"""Simulations of federations that are too large for memory: the clients of one round are held at a time."""

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pagefl.core.algorithm import Algorithm
from pagefl.core.arrays import Integers
from pagefl.core.cohort import Cohort
from pagefl.core.errors import UserError
from pagefl.core.examples import ClientData
from pagefl.core.holdings import Delivery, Fetched
from pagefl.core.memory import needs
from pagefl.core.participants import count_of
from pagefl.core.training import batches
from pagefl.data.source import ClientSource
from pagefl.game.follower import Follower, sample_of
from pagefl.game.leaders import Leaders
from pagefl.game.protocol import Players

from . import halves, paths
from .halves import Say
from .settings import Settings
from .simulation import Simulation
from .task import Task
from .workers import SharedRows

ROWS = "clients.rows"  # the file of what clients keep between rounds
BYTES = 16  # in memory for each client, whether it takes part or not


class CrossDevice(Simulation):
    """A simulation whose clients are fetched round by round. Local accuracies are of the round's clients."""

    everybody = False
    block: Cohort

    def game(self, players: Players) -> tuple[Follower, Leaders]:
        if players.agent_per_client:
            name = type(players).__name__
            raise UserError(
                f"players = {name}: each client has an agent of its own, which learns in the rounds that it "
                f"takes part in; {self.server.clients} agents do not fit into memory, and take part too "
                "rarely; use page-shared"
            )
        return super().game(players)

    def models(self) -> tuple[Tensor, Tensor]:
        raise UserError("metrics: not all clients' models are at hand; expected none")

    def saved(self) -> None:
        self.block.store.saved()


def simulate(
    task: Task, source: ClientSource, algorithm: Algorithm, settings: Settings, say: Say, folder: Path | None
) -> CrossDevice:
    """`folder`: for the rows that clients keep between rounds."""
    check(settings)
    paths.check_device(settings.device)
    source.check()
    cohort = largest_cohort(settings, source.clients)
    module = task.fresh_module(settings.seed)
    width = sum(parameter.nbytes for parameter in module.parameters())
    who = f"{source.clients} clients, of whom {cohort} take part in a round"
    needs(BYTES * source.clients + width * cohort, who, "use fewer clients or a smaller participation")

    def fetch(numbers: Integers) -> ClientData:
        own = source.fetch(numbers)
        return own.hold_out(settings.holdout, settings.seed, numbers) if settings.holdout else own

    sample = sample_of(source.clients, settings.seed)
    sampled = fetch(sample)
    begin = halves.start(module, algorithm, settings, sampled.train, say, task.loss)
    room = cohort + len(sample)
    shared = SharedRows(folder)
    shared.check(begin.row.nbytes * room)
    present: Integers = shared([1 + room], dtype=torch.int64).numpy()
    fetched = Fetched(
        *(fetch, Delivery(sample, sampled), present, begin.model, begin.row),
        holds_out=bool(settings.holdout),
    )
    fetched.bring(sample)
    block = Cohort(
        *(begin.model, algorithm, fetched, begin.training),
        row=begin.row,
        clients=source.clients,
        path=folder / ROWS if folder else None,
        steps=settings.personal.when != "never",
        allocate=shared if settings.device == "cpu" else partial(torch.zeros, device=settings.device),
    )
    client_half = halves.client_half(begin, block, clients=source.clients)
    server_half = halves.server_half(
        begin,
        source.of_server,
        source.clients,
        uploads=block.storage.uploads,
        places=lambda numbers: np.searchsorted(fetched.numbers, numbers),
        allocate=shared,
    )
    largest = int(fetched.sizes.max())
    batches.check_room(min(client_half.chunk, room), largest, settings.epochs, settings.batch_size)
    held = {"train": sampled.train, "test": sampled.test}
    return CrossDevice(server_half, client_half, block, held, settings)


def largest_cohort(settings: Settings, clients: int) -> int:
    """How many may take part in a round. Of a private run, where chance decides, that is as good as sure."""
    mean = int(np.ceil(settings.devices.over * count_of(settings.participation, clients)))
    return min(clients, mean if not settings.privacy.epsilon else mean + 20 + 10 * int(mean**0.5))


def check(settings: Settings) -> None:
    """Raise if a setting needs all clients at once."""
    for name, value, expected in (
        ("executor", settings.executor, "local"),
        ("stop", settings.stop, "rounds"),
        ("stages_every", settings.stages_every, 0),
        ("attack.name", settings.attack.name, "none"),
        ("devices.late", settings.devices.late, "drop"),
        ("devices.select", settings.devices.select, "random"),
    ):
        if value != expected:
            raise UserError(
                f"{name} = {value}: the clients of this task are fetched when they are needed, and are never "
                f"all at hand; expected {expected}"
            )
