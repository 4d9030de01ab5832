"""Players: who chooses lr, epochs and weights. A kind of players is a class whose arguments are its settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol

import numpy as np
from pydantic import Field
from torch import Tensor

from pagefl.agents.ddpg import Losses
from pagefl.core import rng
from pagefl.core.federation import Uploads

from .rules import Bias, Floats, Integers, Ranges

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Wait = Annotated[int, Field(ge=0)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Part = Annotated[float, Field(ge=0, lt=1)]


class Setup(NamedTuple):
    """What players are told of the run before it begins."""

    clients: int
    sizes: Integers
    rounds: int
    seed: int
    lr: float
    epochs: int
    released: bool
    first: int = 0  # the number of the first client: on a node that holds one of many, its own


class Seen(NamedTuple):
    """What a client sees before it moves: the shared model on its own data, and the demand."""

    accuracy: Floats
    loss: Floats
    bias: Bias

    def of(self, which: Any) -> "Seen":
        return Seen(self.accuracy[which], self.loss[which], self.bias)


class Worth(NamedTuple):
    """What a client's move was worth: its own model on its own data."""

    reward: Floats  # 1 / loss, times the demand's bias
    accuracy: Floats
    loss: Floats
    given: Floats  # the loss of what it uploads, which by most rules is its own model


class Leaders(Protocol):
    sees: bool  # whether it looks at what it is shown, so that nobody computes it in vain

    def lead(self, round: int, who: Integers, seen: Seen | None) -> tuple[Floats, Integers, Losses | None]:
        """lr and epochs of these clients."""

    def learn(self, who: Integers, worth: Worth) -> None: ...

    @property
    def tensors(self) -> dict[str, Tensor]: ...

    def load(self, tensors: dict[str, Tensor]) -> None: ...

    def freeze(self) -> None:
        """From now on play the strategy as it stands: no exploring, no learning."""

    @property
    def shared(self) -> dict[str, Tensor]:
        """What the server sends clients to act by, where they share a policy."""

    def lessons(self, who: Integers) -> dict[str, Tensor]:
        """What these clients give the server to learn from."""

    def share(self, round: int, lessons: Mapping[str, Tensor]) -> Losses | None:
        """The server learns from what clients gave."""


class Follower(Protocol):
    sees: bool

    def follow(self, round: int, who: Integers, uploads: Uploads | None) -> tuple[Floats, Losses | None]:
        """The weights of these clients' uploads, given what can be found out about them on the server's game half."""

    def learn(self, reward: float) -> None: ...

    @property
    def tensors(self) -> dict[str, Tensor]: ...

    def load(self, tensors: dict[str, Tensor]) -> None: ...

    def freeze(self) -> None:
        """From now on play the strategy as it stands: no exploring, no learning."""


class Players(Protocol):
    def sides(self, setup: Setup) -> tuple[Leaders, Follower]: ...


class Apart:
    """Clients learn nothing from one another."""

    shared: dict[str, Tensor] = {}  # noqa: RUF012 (never written)

    def lessons(self, who: Integers) -> dict[str, Tensor]:
        return {}

    def share(self, round: int, lessons: Mapping[str, Tensor]) -> Losses | None:
        return None


class Fixed(Apart):
    """The task's lr and epochs for everybody in every round, and weights by data size: how baselines are played."""

    sees = False
    tensors: dict[str, Tensor] = {}  # noqa: RUF012 (never written)

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    def lead(self, round: int, who: Integers, seen: Seen | None) -> tuple[Floats, Integers, Losses | None]:
        return np.full(len(who), self.setup.lr), np.full(len(who), self.setup.epochs), None

    def follow(self, round: int, who: Integers, uploads: Uploads | None) -> tuple[Floats, Losses | None]:
        sizes = self.setup.sizes[who]
        return sizes / sizes.sum(), None

    def learn(self, *_: object) -> None:
        pass

    def load(self, tensors: dict[str, Tensor]) -> None:
        pass

    def freeze(self) -> None:
        pass


@dataclass(frozen=True)
class FixedPlayers:
    """The task's lr and epochs for everybody in every round, and weights by data size."""

    heed_demand: ClassVar = False  # rewards, which demand multiplies, change nothing for them

    def sides(self, setup: Setup) -> tuple[Leaders, Follower]:
        return Fixed(setup), Fixed(setup)


class Scheduled(Fixed):
    def __init__(self, setup: Setup, lr_last: float, epochs_last: int) -> None:
        super().__init__(setup)
        self.lr_last, self.epochs_last = lr_last, epochs_last

    def lead(self, round: int, who: Integers, seen: Seen | None) -> tuple[Floats, Integers, Losses | None]:
        passed = (round - 1) / max(1, self.setup.rounds - 1)
        lr = self.setup.lr * (self.lr_last / self.setup.lr) ** passed
        epochs = int(self.setup.epochs + (self.epochs_last - self.setup.epochs) * passed + 0.5)
        return np.full(len(who), lr), np.full(len(who), epochs), None


@dataclass(frozen=True)
class SchedulePlayers:
    """lr falls geometrically and epochs linearly, from the task's to these, over the run; weights by data size."""

    heed_demand: ClassVar = False

    lr_last: Positive = 1e-3
    epochs_last: Count = 1

    def sides(self, setup: Setup) -> tuple[Leaders, Follower]:
        return Scheduled(setup, self.lr_last, self.epochs_last), Fixed(setup)


class Random(Fixed):
    def __init__(self, setup: Setup, ranges: Ranges) -> None:
        super().__init__(setup)
        self.ranges = ranges

    def lead(self, round: int, who: Integers, seen: Seen | None) -> tuple[Floats, Integers, Losses | None]:
        action = 2 * rng.uniforms(rng.keys(self.setup.seed, "random player", round, (self.setup.first + who).tolist()), 2) - 1
        return self.ranges.lr(action[:, 0]), self.ranges.epochs(action[:, 1]), None

    def follow(self, round: int, who: Integers, uploads: Uploads | None) -> tuple[Floats, Losses | None]:
        action = 2 * rng.uniforms(rng.keys(self.setup.seed, "random server", round, who.tolist()), 1)[:, 0] - 1
        return self.ranges.weights(action), None


@dataclass(frozen=True)
class RandomPlayers:
    """Both sides choose at random in the same ranges: the control without which nobody can tell whether learning helped."""

    heed_demand: ClassVar = False

    lr_min: Positive = 1e-3
    lr_max: Positive = 0.1
    epochs_max: Count = 20
    temperature: Positive = 1.0

    def sides(self, setup: Setup) -> tuple[Leaders, Follower]:
        ranges = Ranges(self.lr_min, self.lr_max, self.epochs_max, self.temperature)
        return Random(setup, ranges), Random(setup, ranges)
