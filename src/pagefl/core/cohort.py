"""Cohort: a block for the clients of one round, of a federation that is too large to be held at once.

Examples are fetched when they are needed. What clients keep between rounds is in a file, with a row for each
that has taken part.
"""

from pathlib import Path

import torch
from torch import Tensor

from .algorithm import Algorithm, State
from .arrays import Integers
from .block import STEPPED, STEPPED_CLIENTS, Block
from .holdings import Fetched
from .sparse_rows import SparseRows
from .storage import Allocate
from .training.model import Model
from .training.stack import Training


class Cohort(Block):
    def __init__(
        self,
        model: Model,
        algorithm: Algorithm,
        data: Fetched,
        training: Training,
        *,
        row: Tensor,
        clients: int,
        path: Path | None,
        steps: bool = True,
        allocate: Allocate = torch.zeros,
    ) -> None:
        """`data`: with some clients present. `clients`: of the whole federation. `path`: of the file of kept
        rows; None for a nameless one. The rest is a `Block`'s."""
        super().__init__(model, algorithm, data, training, row=row, steps=steps, allocate=allocate)
        self.fetched = data
        self.store = SparseRows(clients, algorithm.client_state(row, model.layout), path)

    def gather(self, numbers: Integers) -> None:
        self.fetched.bring(numbers)
        self.store.read(numbers, self.storage.kept)

    def settle(self, places: Integers, sizes: Integers) -> None:
        self.fetched.sizes[places] = sizes
        if self.keeps:
            self.store.write(self.numbers[places], places, self.storage.kept)

    def state(self, stepped: bool) -> State:
        found = self.store.state()
        if stepped:  # by those that were present then
            found[f"clients.{STEPPED_CLIENTS}"] = torch.from_numpy(self.numbers.copy())
            found[f"clients.{STEPPED}"] = self.stepped[: len(self.numbers)]
        return found

    def load(self, state: State) -> None:
        self.store.load(state)
        if (name := f"clients.{STEPPED}") in state:
            self.fetched.bring(state[f"clients.{STEPPED_CLIENTS}"].numpy())
            self.stepped[: len(self.numbers)] = state[name]
