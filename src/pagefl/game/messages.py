"""What crosses between server and clients in a round: one message each way."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from pagefl.core.algorithm import State, bytes_of
from pagefl.core.arrays import Floats, Integers

from .rewards import DemandRatio

NOBODY = np.empty(0, np.int64)
# Numbers that clients tell of themselves.
SIZE = "size"
SCORES = ("test_accuracy", "test_loss", "train_accuracy", "train_loss", "before_accuracy", "before_loss")
MOVES = (
    "lr",
    "epochs",
    "reward",
    "state",
    "critic_loss",
    "actor_loss",
    "seconds",
    "joules",
    "multiplier",
    "used",
)


class Told(dict[str, Floats]):
    """Numbers that clients tell of themselves: a column for each name, NaN where one tells nothing."""

    def __init__(self, clients: Integers) -> None:
        """`clients`: of whom there may be something to tell, in ascending order."""
        super().__init__({name: np.full(len(clients), np.nan) for name in (SIZE, *SCORES, *MOVES)})
        self.clients = clients

    def put(self, name: str, clients: Integers, values: Floats | Integers | float) -> None:
        self[name][self.places(clients)] = values

    def of(self, name: str, clients: Integers) -> Floats:
        return self[name][self.places(clients)]

    def places(self, clients: Integers) -> Integers:
        return np.searchsorted(self.clients, clients)


class Orders(NamedTuple):
    """From the server to the clients."""

    round: int
    clients: Integers  # who trains; empty: evaluate the model that is sent, and tell
    sent: State  # the algorithm's
    policy: State  # the server policy's
    demand: DemandRatio
    mean_size: float  # of the clients' training data; 0: it is a secret
    judged: bool = True  # accuracies on test data are wanted
    # those on whose test data the shared model is evaluated too, besides those that train
    sample: Integers = NOBODY

    @property
    def size(self) -> int:
        """Bytes that each client is sent."""
        return bytes_of(self.sent, self.policy)


class Answer(NamedTuple):
    """From the clients to the server."""

    clients: Integers  # whose uploads arrived, ascending
    quarantined: Integers  # whose results were not finite, or were refused
    # a row for each of `clients`; empty in a simulation, where the server reads the clients' rows
    uploads: State
    experience: State  # a row for each of `clients`
    told: Told
    gradients: float = 0.0  # that the clients evaluated, in examples; NaN if they do not tell
    absent: Mapping[str, int] = MappingProxyType({})  # how many did not answer, or too late
