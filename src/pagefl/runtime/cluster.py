"""Simulations on a Ray cluster: clients are with actors, the server half and the players in this process.

Jobs, sums and random streams do not depend on how many actors there are, so a run has the bits of one that
uses local workers.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from pagefl.core.algorithm import Algorithm
from pagefl.core.errors import UserError
from pagefl.core.examples import Examples, Splits
from pagefl.trust.attacks import ON_UPLOADS

from . import halves, paths
from .halves import Say, Start
from .ray_blocks import RayBlocks
from .settings import Settings
from .simulation import Simulation, split
from .task import Task


class ClusterSimulation(Simulation):
    """A federation whose clients are on a cluster."""

    def __init__(self, begin: Start, module: nn.Module, data: Splits, say: Say) -> None:
        self.blocks = RayBlocks(begin, module, data, say)
        clients = halves.client_half(begin, self.blocks)
        server_half = halves.server_half(begin, data.of_server, clients.size, uploads={})
        server_half.source = self.blocks
        server_half.run_jobs = lambda wanted: self.blocks.run_for_server(wanted, server_half.sent)
        self.server, self.clients, self.settings = server_half, clients, begin.settings
        roles = {"train": data.train, "test": data.test, "reward": data.holdout or data.train}
        kind = begin.row.dtype
        self.held = {role: own.of_type(kind, f"client {{}} ({role})") for role, own in roles.items()}

    def models(self) -> tuple[Tensor, Tensor]:
        return self.server.model_row, self.clients.state()["clients.personal"]

    @property
    def data(self) -> dict[str, Examples]:
        return {**self.held, **self.server.data}

    @contextmanager
    def with_workers(self, say: Say = lambda line: None) -> Iterator[None]:
        try:
            yield
        finally:
            self.blocks.close()


def simulate(task: Task, algorithm: Algorithm, settings: Settings, say: Say) -> ClusterSimulation:
    if settings.device != "cpu":
        raise UserError(f"device = {settings.device}: executor = ray trains on CPUs; expected cpu")
    if settings.attack.name in ON_UPLOADS:
        raise UserError(
            f"attack.name = {settings.attack.name}: executor = ray cannot replace uploads, which lie with "
            "its actors; expected executor = local, or attack.name = labelflip"
        )
    paths.check_device(settings.device)
    data = split(task, settings)
    module = task.fresh_module(settings.seed)
    begin = halves.start(module, algorithm, settings, data.train, say, task.loss)
    return ClusterSimulation(begin, module, data, say)
