"""Labelled examples of many clients, and the roles a federation's data play."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from . import rng, summary
from .arrays import Integers
from .errors import UserError

CHANCES = 4  # uniform numbers in [0, 1) that an augmentation gets for each example
# (x [n, batch, ...], chances [n, batch, CHANCES]) -> x as a step sees it
Augment = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Examples:
    """All clients' examples, one client after the other; client i owns x[starts[i]:starts[i + 1]]."""

    x: Tensor
    y: Tensor
    starts: Tensor
    augment: Augment | None = None  # in training; models are never evaluated on augmented examples
    # Neighbours overlap, as windows of a text do: what is held out is cut from the end, not drawn.
    in_order: bool = False

    @classmethod
    def of(cls, clients: Sequence[tuple[Tensor, Tensor]], augment: Augment | None = None) -> "Examples":
        sizes = torch.tensor([0, *(len(y) for _, y in clients)])
        x, y = torch.cat([x for x, _ in clients]), torch.cat([y for _, y in clients])
        return cls(x, y.long(), sizes.cumsum(0), augment)

    @classmethod
    def of_one(cls, x: Tensor, y: Tensor) -> "Examples":
        return cls(x, y, torch.tensor([0, len(y)]))

    @classmethod
    def of_owners(cls, owners: Sequence["Examples"]) -> "Examples":
        """The examples of some, one after the other."""
        if len(owners) == 1:
            return owners[0]
        x, y = torch.cat([own.x for own in owners]), torch.cat([own.y for own in owners])
        sizes = torch.cat([torch.zeros(1, dtype=torch.long), *(own.sizes for own in owners)])
        return replace(owners[0], x=x, y=y, starts=sizes.cumsum(0))

    @cached_property
    def sizes(self) -> Tensor:
        return self.starts.diff()

    @cached_property
    def by_feature(self) -> Tensor:
        """[features, examples], for kernels whose vectors run along examples."""
        return self.x.flatten(1).T.contiguous()

    def client(self, i: int) -> tuple[Tensor, Tensor]:
        own = slice(int(self.starts[i]), int(self.starts[i + 1]))
        return self.x[own], self.y[own]

    def block(self, start: int, stop: int) -> "Examples":
        """The examples of clients start … stop - 1, without a copy."""
        low, high = int(self.starts[start]), int(self.starts[stop])
        starts = self.starts[start : stop + 1] - low
        return replace(self, x=self.x[low:high], y=self.y[low:high], starts=starts)

    def first(self, count: int) -> "Examples":
        """A copy of the first examples, as one owner's."""
        x, y = self.x[:count].clone(), self.y[:count].clone()
        return Examples(x, y, torch.tensor([0, len(y)]), self.augment)

    def of_some(self, clients: Integers) -> "Examples":
        """The examples of these clients, which then are the first ones."""
        found = Examples.of([self.client(i) for i in clients.tolist()], self.augment)
        return replace(found, in_order=self.in_order)

    def order(self, i: int, chance: np.random.Generator) -> Tensor:
        """Client i's examples in the order in which a hold-out is cut off at the end."""
        size = int(self.sizes[i])
        return torch.arange(size) if self.in_order else torch.from_numpy(chance.permutation(size))

    def of_one_owner(self) -> "Examples":
        return Examples(self.x, self.y, torch.tensor([0, len(self.y)]), self.augment)

    def of_type(self, dtype: torch.dtype, who: str, first: int = 0) -> "Examples":
        """Fractions in the type of the module that is trained on them; integers and bytes stay as they are.

        `who`: what an error calls the owner of an example, such as "client {} (train)". `first`: the first
        owner's number.
        """
        if not self.x.is_floating_point() or self.x.dtype == dtype:
            return self
        cast = replace(self, x=self.x.to(dtype))
        lost = ~cast.x.reshape(len(cast.y), -1).isfinite().all(1)
        if bool(lost.any()):
            named, largest = self._owner(lost, who, first), float(self.x[lost][0].abs().max())
            raise UserError(
                f"{named}: x has {largest:.3g}, which the module's {dtype} cannot hold; scale the data"
            )
        return cast

    def check_labels(self, classes: int, who: str, first: int = 0) -> None:
        beyond = (self.y < 0) | (self.y >= classes)
        if bool(beyond.any()):
            named, label = self._owner(beyond, who, first), int(self.y[beyond][0])
            raise UserError(
                f"{named}: y has label {label}, but the module answers with {classes} classes; expected "
                "labels from 0 to "
                f"{classes - 1}, or a module with more classes"
            )

    def check_tokens(self, count: int, who: str, first: int = 0) -> None:
        if not tokens_fit(self.x, count):
            beyond = (self.x < 0) | (self.x >= count)
            named, token = self._owner(beyond.flatten(1).any(1), who, first), int(self.x[beyond][0])
            raise UserError(
                f"{named}: x has token {token}, but the module's embedding has {count}; expected tokens from "
                f"0 to {count - 1}"
            )

    def _owner(self, bad: Tensor, who: str, first: int) -> str:
        """The owner of the first example that is marked."""
        return who.format(first + int(torch.searchsorted(self.starts, bad.nonzero()[0, 0], right=True)) - 1)

    def to(self, device: str) -> "Examples":
        return replace(self, x=self.x.to(device), y=self.y.to(device))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __repr__(self) -> str:
        return summary.line(
            self, "", [f"{len(self.y)} examples of {len(self)} owners", summary.examples(self.x)]
        )


def tokens_fit(x: Tensor, count: int) -> bool:
    if not x.numel():
        return True
    low, high = x.aminmax()
    return int(low) >= 0 and int(high) < count


@dataclass(frozen=True)
class ClientData:
    """What a block of clients has."""

    train: Examples
    test: Examples
    holdout: Examples | None = None  # takes the place of the training data in states and rewards

    @classmethod
    def joined(cls, parts: Sequence["ClientData"]) -> "ClientData":
        """The clients of all parts, one after the other."""
        train, test = (
            Examples.of_owners(own) for own in zip(*((p.train, p.test) for p in parts), strict=True)
        )
        return cls(train, test)

    def hold_out(self, share: float, seed: int, numbers: Integers | None = None) -> "ClientData":
        """Keep a share of every client's training data out of training. `numbers`: of the clients, if they
        are not 0, 1, …"""
        kept, held = [], []
        for i, number in enumerate(range(len(self.train)) if numbers is None else numbers.tolist()):
            x, y = self.train.client(i)
            count = max(1, round(share * len(y)))
            if count >= len(y):
                raise UserError(
                    f"holdout = {share} leaves client {number} none of its {len(y)} training examples; "
                    "use a smaller share"
                )
            order = self.train.order(i, rng.stream(seed, "holdout", number))
            held.append((x[order[-count:]], y[order[-count:]]))
            kept.append((x[order[:-count]], y[order[:-count]]))
        rest = Examples.of(kept, self.train.augment)
        return ClientData(replace(rest, in_order=self.train.in_order), self.test, Examples.of(held))


@dataclass(frozen=True)
class ServerData:
    """What the server has: `game` may be used in states and rewards, `test` only evaluates."""

    game: Examples
    test: Examples


@dataclass(frozen=True)
class Splits:
    """A whole federation's data by role."""

    train: Examples
    test: Examples
    game: Examples
    server_test: Examples
    holdout: Examples | None = None

    @property
    def of_clients(self) -> ClientData:
        return ClientData(self.train, self.test, self.holdout)

    @property
    def of_server(self) -> ServerData:
        return ServerData(self.game, self.server_test)

    def named(self) -> list[tuple[str, Examples]]:
        """Every set by the words in which an error names the owner of one of its examples."""
        clients = {
            "client {} (train)": self.train,
            "client {} (test)": self.test,
            "client {} (holdout)": self.holdout,
        }
        server = [("server", examples) for examples in (self.game, self.server_test)]
        return [(name, examples) for name, examples in clients.items() if examples is not None] + server

    def hold_out(self, share: float, seed: int) -> "Splits":
        """Keep a share of every client's training data out of training, for states and rewards."""
        clients = self.of_clients.hold_out(share, seed)
        return Splits(clients.train, self.test, self.game, self.server_test, clients.holdout)

    @property
    def facts(self) -> list[str]:
        """What a reader wants to know first."""
        server = len(self.game.y) + len(self.server_test.y)
        counts = {"training": len(self.train.y), "test": len(self.test.y), "server": server}
        counts |= {} if self.holdout is None else {"hold-out": len(self.holdout.y)}
        labels = 1 + max(int(examples.y.max()) for _, examples in self.named())
        sizes = ", ".join(f"{count} {role}" for role, count in counts.items())
        return [f"{sizes} examples", summary.examples(self.train.x), f"labels 0 to {labels - 1}"]

    def __repr__(self) -> str:
        return summary.line(self, self._title, self.facts)

    def _repr_html_(self) -> str:
        return summary.html(self, self._title, self.facts)

    @property
    def _title(self) -> str:
        return f"{len(self.train)} client{'s' * (len(self.train) != 1)}"
