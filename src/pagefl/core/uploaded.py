"""Uploaded: the uploads of a round, as an algorithm's server half sees them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from . import sums
from .algorithm import State
from .arrays import Floats, Integers


class Source(Protocol):
    """Where uploads lie: in this process, or with the clients' blocks on other machines."""

    @property
    def names(self) -> list[str]: ...

    @property
    def size(self) -> int:
        """Bytes that one client uploads."""

    @property
    def cuts(self) -> Integers:
        """The clients with which another machine's uploads begin."""

    def rows(self, name: str, ids: Integers) -> Tensor:
        """A row for each of these clients."""

    def sum(self, name: str, ids: Integers, weights: Tensor) -> Tensor:
        """The weighted sum of these clients' rows."""


class Here:
    """Uploads in this process, a row for every client of the federation, or for those that are present."""

    def __init__(self, held: State, places: Callable[[Integers], Integers] = lambda ids: ids) -> None:
        """`places`: the rows of these clients."""
        self.held, self.places = held, places

    @property
    def names(self) -> list[str]:
        return list(self.held)

    @property
    def size(self) -> int:
        return sum(rows[0].nbytes for rows in self.held.values())

    @property
    def cuts(self) -> Integers:
        return np.empty(0, np.int64)

    def rows(self, name: str, ids: Integers) -> Tensor:
        rows = self.held[name]
        return rows if len(ids) == len(rows) else rows[torch.from_numpy(self.places(ids))]

    def sum(self, name: str, ids: Integers, weights: Tensor) -> Tensor:
        return sums.weighted(self.held[name], self.places(ids), ids, weights)


class Uploaded(Mapping[str, Tensor]):
    """What these clients uploaded. `uploads[name]` has a row for each of them.

    `sum` and `mean` add rows up where they lie. On a cluster that is a row for every machine and not for
    every client.
    """

    def __init__(self, source: Source, ids: Integers) -> None:
        self.source, self.ids = source, ids

    def sum(self, name: str, weights: Tensor) -> Tensor:
        return self.source.sum(name, self.ids, weights)

    def mean(self, name: str) -> Tensor:
        """With equal weights."""
        count = len(self.ids)
        return self.sum(name, torch.full([count], 1 / count, dtype=torch.float64))

    def counted(self, weights: Tensor, share: float) -> tuple[Tensor, float]:
        """The weights of these uploads and their part of all clients, as an algorithm is told them."""
        return weights, share

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.source.names:
            raise KeyError(name)
        return self.source.rows(name, self.ids)

    def __iter__(self) -> Iterator[str]:
        return iter(self.source.names)

    def __len__(self) -> int:
        return len(self.source.names)


# How far each upload counts in a mean with equal weights, 0 to 1, by the name of the array. None: fully.
Regard = Callable[[str], Floats | None]


class Regarded(Uploaded):
    """Uploads some of which count for less in means with equal weights: their updates are shortened."""

    def __init__(self, uploads: Uploaded, origin: State, regard: Regard) -> None:
        """`origin`: see `Treatment`."""
        super().__init__(uploads.source, uploads.ids)
        self.uploads, self.origin, self.regard = uploads, origin, regard

    def sum(self, name: str, weights: Tensor) -> Tensor:
        return self.uploads.sum(name, weights)

    def mean(self, name: str) -> Tensor:
        regard = self.regard(name)
        if regard is None:
            return self.uploads.mean(name)
        shares = torch.from_numpy(regard / len(self.ids))
        moved, origin = self.sum(name, shares), self.origin.get(name)
        return moved if origin is None else moved + (1 - float(shares.sum())) * origin

    def __getitem__(self, name: str) -> Tensor:
        return self.uploads[name]


class Treatment(Protocol):
    """What a server does with uploads before it aggregates them: a defence, or noise for privacy."""

    def __call__(self, uploads: Uploaded, origin: State, round: int) -> Uploaded:
        """`origin`: what a client would upload that has not trained, by name; zero where it has no entry."""
