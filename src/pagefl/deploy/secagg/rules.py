"""Which sums an algorithm takes of its uploads, and what cannot be combined with secure aggregation."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pagefl.core.algorithm import Algorithm, State
from pagefl.core.arrays import Integers
from pagefl.core.errors import UserError
from pagefl.core.uploaded import Uploaded
from pagefl.game.protocol import ClientPolicy, ServerPolicy

FEWEST = 3  # clients: of two, each knows the other's upload by the sum and its own
PROBED = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)  # weights of three clients


class Sum(NamedTuple):
    name: str  # of the upload
    weighted: bool  # by the clients' sizes; otherwise all count the same


class Conflict(Exception):
    """An aggregate is not made of sums. The message says what it wants instead."""


def sums_of(algorithm: Algorithm, shared: State, uploads: State) -> list[Sum]:
    """What `aggregate` sums. `uploads`: a row of each upload."""
    probe = _Probe(uploads)
    weights = PROBED.to(shared["model"])
    algorithm.aggregate(
        {name: value.clone() for name, value in shared.items()},
        Uploaded(probe, np.arange(len(weights))),
        weights,
        1.0,
    )
    return sorted(probe.found)


class _Probe:
    """Uploads of zeros, which notice what is asked of them."""

    def __init__(self, uploads: State) -> None:
        self.uploads, self.found = uploads, set[Sum]()

    @property
    def names(self) -> list[str]:
        return list(self.uploads)

    @property
    def size(self) -> int:
        return sum(value.nbytes for value in self.uploads.values())

    @property
    def cuts(self) -> Integers:
        return np.empty(0, np.int64)

    def rows(self, name: str, ids: Integers) -> Tensor:
        raise Conflict(f"it looks at the clients' own {name!r}")

    def sum(self, name: str, ids: Integers, weights: Tensor) -> Tensor:
        self.found.add(Sum(name, is_weighted(name, weights, PROBED)))
        return torch.zeros_like(self.uploads[name])


def is_weighted(name: str, weights: Tensor, by_size: Tensor) -> bool:
    if torch.allclose(weights.double(), by_size, atol=1e-6):
        return True
    if torch.allclose(weights.double(), torch.full_like(by_size, 1 / len(by_size)), atol=1e-6):
        return False
    raise Conflict(f"it sums {name!r} with weights of its own")


def check(
    algorithm: Algorithm,
    shared: State,
    uploads: State,
    server: ServerPolicy,
    client: ClientPolicy,
    clients: int,
) -> None:
    """Raise if somebody would have to see a single upload. `clients`: that train in a round."""
    try:
        sums_of(algorithm, shared, uploads)
    except Conflict as reason:
        raise UserError(
            f"deploy.secure = true: algorithm {type(algorithm).__name__} cannot be aggregated securely, "
            f"since {reason}; expected one whose aggregate is made of sums and means"
        ) from None
    kind = type(server)
    hooks = ("act", "observe", "regard", "update")
    usual = all(getattr(kind, hook) is getattr(ServerPolicy, hook) for hook in hooks)
    if not usual or server.looks_at_uploads or client.experience(np.array([0])):
        raise UserError(
            f"deploy.secure = true: the server's {kind.__name__} looks at what single clients upload, or "
            "chooses their weights; expected players that weigh by size, such as fixed"
        )
    if clients < FEWEST:
        raise UserError(
            f"deploy.secure = true: {clients} clients train in a round; expected at least {FEWEST}, since of "
            "two each knows the other's upload from the sum"
        )
