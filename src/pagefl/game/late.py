"""Late uploads that count in a later round: asynchronous, buffered aggregation.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: Federated Learning with Buffered Asynchronous
Aggregation. AISTATS 2022.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from pagefl.core import sums
from pagefl.core.algorithm import State
from pagefl.core.arrays import Flags, Integers
from pagefl.core.errors import UserError
from pagefl.core.server import ServerHalf
from pagefl.core.uploaded import Source, Uploaded

from .messages import NOBODY


class Landed:
    """A `Source` in which some uploads began in earlier rounds.

    Such an upload counts as the present origin, and what it has moved by times 1 / sqrt(1 + rounds since).
    """

    def __init__(self, source: Source) -> None:
        self.source, self.clients = source, NOBODY
        self.made: State = {}

    def put(self, clients: Integers, moved: State, rounds: Integers, origin: State) -> None:
        """The late ones of this round. `moved`: a row for each. `rounds`: since each was sent its model."""
        self.clients, weights = clients, torch.from_numpy(1 / np.sqrt(1 + rounds))
        for name, rows in moved.items():
            shrunk = rows * weights.to(rows).view(-1, *[1] * (rows.dim() - 1))
            self.made[name] = shrunk.add_(origin[name]) if name in origin else shrunk

    @property
    def names(self) -> list[str]:
        return self.source.names

    @property
    def size(self) -> int:
        return self.source.size

    @property
    def cuts(self) -> Integers:
        return self.source.cuts

    def rows(self, name: str, ids: Integers) -> Tensor:
        late = self._late(ids)
        if not late.any():
            return self.source.rows(name, ids)
        rows = self.made[name].new_empty([len(ids), *self.made[name].shape[1:]])
        rows[torch.from_numpy(~late)] = self.source.rows(name, ids[~late]).to(rows)
        rows[torch.from_numpy(late)] = self.made[name][
            torch.from_numpy(np.searchsorted(self.clients, ids[late]))
        ]
        return rows

    def sum(self, name: str, ids: Integers, weights: Tensor) -> Tensor:
        if not self._late(ids).any():
            return self.source.sum(name, ids, weights)
        return sums.weighted(self.rows(name, ids), np.arange(len(ids)), ids, weights)

    def _late(self, ids: Integers) -> Flags:
        """Which of these clients they are. Both are in ascending order."""
        if not len(self.clients):
            return np.zeros(len(ids), bool)
        places = np.minimum(np.searchsorted(self.clients, ids), len(self.clients) - 1)
        return np.asarray(self.clients[places] == ids)


class AddedUp(Uploaded):
    """Uploads of which only sums are known: a stand-in, to see whether an algorithm asks for more."""

    def __init__(self, source: Source, algorithm: str) -> None:
        super().__init__(source, NOBODY)
        self.algorithm = algorithm

    def sum(self, name: str, weights: Tensor) -> Tensor:
        rows = self.source.rows(name, NOBODY)
        return rows.new_zeros(rows.shape[1:])

    def mean(self, name: str) -> Tensor:
        return self.sum(name, torch.empty(0))

    def __getitem__(self, name: str) -> Tensor:
        raise UserError(
            f"devices.late = buffer: the server half of {self.algorithm} looks at each client's `{name}`, "
            "and late uploads can be added up alone; choose another algorithm, or devices.late = drop"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self.source.names)


def algorithm_adds_up(half: ServerHalf) -> None:
    """Raise if an algorithm does more with uploads than to add them up."""
    uploads = AddedUp(half.source, type(half.algorithm).__name__)
    half.algorithm.aggregate(half.shared, uploads, half.model_row.new_ones(1), 1.0)
