"""Actor: a block of clients on some machine of a Ray cluster, and the server's examples beside it.

It is built of what the driver sends once, does jobs, and adds up its clients' uploads.
"""

import platform
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pagefl.core import jobs, server, sums
from pagefl.core.algorithm import Algorithm, State
from pagefl.core.arrays import Integers
from pagefl.core.errors import UserError
from pagefl.core.examples import ClientData, Examples, ServerData
from pagefl.core.training.loss import Loss

from . import halves
from .settings import Settings
from .workers import keep_memory, memory_errors_named, one_thread

Arrays = dict[str, np.ndarray]


class Given(NamedTuple):
    """What an actor builds its block of."""

    module: nn.Module
    algorithm: Algorithm
    settings: Settings  # with the path that this process found
    batch: Examples  # that the path was found with
    clients: int  # of the whole federation
    loss: Loss | None  # of the user's own


class Actor:
    """A block of clients on some machine, and the server's examples beside it."""

    def __init__(self) -> None:
        one_thread()
        keep_memory()
        # Jobs lie in Ray's store as well, and nobody writes to them.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")

    def build(self, given: Given, first: int, data: Mapping[str, Any]) -> tuple[bool, Any]:
        """What must be known of it, or what is wrong."""
        try:
            self._build(given, first, data)
        except UserError as error:
            return False, str(error)
        facts = {
            "keeps": self.block.keeps,
            "uploads": list(self.server.uploads),
            "size": self.server.source.size,
        }
        return True, {**versions(self.arithmetic), **facts}

    def _build(self, given: Given, first: int, data: Mapping[str, Any]) -> None:
        found = {role: _examples(own) for role, own in data.items()}
        with memory_errors_named():
            begin = halves.start(given.module, given.algorithm, given.settings, given.batch, loss=given.loss)
            clients = ClientData(found["train"], found["test"], found.get("holdout"))
            self.block, self.first = halves.block(begin, halves.resident(begin, clients, first)), first
            self.server = halves.server_half(
                begin,
                ServerData(found["game"], found["server_test"]),
                given.clients,
                uploads=self.block.storage.uploads,
            )
        self.arithmetic = begin.model.arithmetic

    def run(self, sent: Arrays, wanted: Sequence[jobs.Job | server.Job]) -> tuple[bool, Any]:
        """The answers, or what is wrong."""
        # Where it lies: a copy of a large model takes as long as a part of its training.
        self.block.sent = {name: value[None] for name, value in tensors(sent).items()}
        self.server.sent = dict(self.block.sent)
        try:
            with memory_errors_named():
                return True, [self._work(job) for job in wanted]
        except UserError as error:
            return False, str(error)

    def _work(self, job: jobs.Job | server.Job) -> object:
        if isinstance(job, jobs.Job):
            return self.block.work(job._replace(ids=job.ids - self.first))
        if job.of_uploads:
            job = job._replace(ids=job.ids - self.first)
        return self.server.work(job)

    def rows(self, name: str, ids: Integers) -> np.ndarray:
        return self.block.storage.uploads[name][torch.from_numpy(ids - self.first)].numpy()

    def sum(self, name: str, ids: Integers, weights: np.ndarray) -> tuple[Integers, np.ndarray]:
        held = self.block.storage.uploads[name]
        numbers, rows = sums.partly(held, self.first, ids, torch.from_numpy(weights.copy()))
        return numbers, rows.numpy()

    def state(self, stepped: bool) -> Arrays:
        return arrays(self.block.state(stepped))

    def load(self, state: Arrays) -> None:
        self.block.load(tensors(state))


def versions(arithmetic: str) -> dict[str, str]:
    """What must be the same on all machines."""
    own = {name: version(name) for name in ("pagefl", "torch", "numba", "numpy")}
    return {**own, "Python": platform.python_version(), "arithmetic": arithmetic}


def parts(examples: Examples) -> dict[str, Any]:
    """As what Ray moves without a copy."""
    arrays = {name: getattr(examples, name).numpy() for name in ("x", "y", "starts")}
    return {**arrays, "augment": examples.augment, "in_order": examples.in_order}


def _examples(parts: Mapping[str, Any]) -> Examples:
    x, y, starts = (tensor(parts[name]) for name in ("x", "y", "starts"))
    return Examples(x, y, starts, parts["augment"], parts["in_order"])


def arrays(state: State) -> Arrays:
    return {name: value.numpy() for name, value in state.items()}


def tensor(value: np.ndarray) -> Tensor:
    """Where it lies: in Ray's store, which cannot be written to. Nobody does, and torch need not warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(value)


def tensors(arrays: Arrays) -> State:
    return {name: tensor(value) for name, value in arrays.items()}
