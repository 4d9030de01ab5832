"""Holdings: where the examples of a block's clients are. They lie in memory, or come when they are needed."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from .arrays import Integers
from .errors import UserError
from .examples import ClientData, Examples
from .training.model import Model

MEMO = 256  # clients whose examples are kept until others are needed


class Holdings(Protocol):
    """The examples of a block's clients, by role: `train`, `test`, and `reward` (states and rewards)."""

    holds_out: bool  # `reward` is not the training data
    room: int  # for so many clients at once

    @property
    def numbers(self) -> Integers:
        """Of the clients that are here, in ascending order. A client's place is its position here."""

    @property
    def sizes(self) -> Integers:
        """How many training examples each of them has; 0 if that is not known yet."""

    def of(self, role: str, places: Integers) -> tuple[Examples, Tensor]:
        """Examples with those of these clients among them, and the clients' positions there."""

    def class_counts(self, places: Integers, classes: int) -> Tensor:
        """How many training examples of each class these clients have, [clients, classes]."""


class Resident:
    """The examples of all clients, in memory."""

    def __init__(self, data: ClientData, model: Model, row: Tensor, first: int = 0) -> None:
        """`first`: the number of the first client."""
        self.roles = {role: _fit(_of_role(data, role), role, model, row, first) for role in ("train", "test")}
        self.roles["reward"] = (
            self.roles["train"] if data.holdout is None else _fit(data.holdout, "reward", model, row, first)
        )
        self.holds_out, self.room = data.holdout is not None, len(data.train)
        self.numbers: Integers = first + np.arange(self.room)
        self.sizes: Integers = data.train.sizes.numpy()
        self.counts: Tensor | None = None

    def of(self, role: str, places: Integers) -> tuple[Examples, Tensor]:
        return self.roles[role], torch.from_numpy(places)

    def class_counts(self, places: Integers, classes: int) -> Tensor:
        if self.counts is None:
            self.counts = class_counts(self.roles["train"], classes)
        return self.counts[places]


class Delivery:
    """Clients whose examples were made or read together."""

    def __init__(self, numbers: Integers, data: ClientData) -> None:
        self.place = {number: place for place, number in enumerate(numbers.tolist())}
        self.data = data
        self.roles: dict[str, Examples] = {}

    def places(self, numbers: Integers) -> list[int]:
        """Of these clients; fewer if some are missing."""
        return [self.place[number] for number in numbers.tolist() if number in self.place]

    def of(self, role: str, model: Model, row: Tensor) -> Examples:
        if role == "reward" and self.data.holdout is None:
            role = "train"
        if role not in self.roles:
            own = _of_role(self.data, role)
            try:
                self.roles[role] = _fit(own, role, model, row, 0)
            except UserError:
                for number, place in self.place.items():
                    _fit(own.block(place, place + 1), role, model, row, number)  # names the client
                raise
        return self.roles[role]


class Fetched:
    """The examples of the clients of one round, made or read when they are needed."""

    def __init__(
        self,
        fetch: Callable[[Integers], ClientData],
        sample: Delivery,
        shared: Integers,
        model: Model,
        row: Tensor,
        *,
        holds_out: bool,
    ) -> None:
        """`fetch`: the examples of some clients, by their numbers. `sample`: those that are needed again and
        again. `shared`: memory that worker processes share, for the count and the numbers of the clients that
        are present."""
        self.fetch, self.shared, self.holds_out = fetch, shared, holds_out
        self.model, self.row, self.room = model, row, len(shared) - 1
        self.sample = sample
        self.held = [sample]
        self.counted = dict(zip(sample.place, sample.data.train.sizes.tolist(), strict=True))
        self.sizes: Integers = np.empty(0, np.int64)

    @property
    def numbers(self) -> Integers:
        return self.shared[1 : 1 + self.shared[0]]

    def bring(self, numbers: Integers) -> None:
        """These clients are present now."""
        self.shared[1 : 1 + len(numbers)] = numbers
        self.shared[0] = len(numbers)
        self.sizes = np.array([self.counted.get(number, 0) for number in numbers.tolist()], np.int64)

    def of(self, role: str, places: Integers) -> tuple[Examples, Tensor]:
        numbers = self.numbers[places]
        for held in self.held:
            if len(found := held.places(numbers)) == len(numbers):
                return held.of(role, self.model, self.row), torch.tensor(found)
        if sum(len(held.place) for held in self.held) + len(numbers) > MEMO:
            self.held = [self.sample]
        self.held.append(Delivery(numbers, self.fetch(numbers)))
        return self.of(role, places)

    def class_counts(self, places: Integers, classes: int) -> Tensor:
        examples, places_there = self.of("train", places)
        return class_counts(examples, classes)[places_there]


def class_counts(examples: Examples, classes: int) -> Tensor:
    """How many examples of each class, [owners, classes]."""
    owners = torch.repeat_interleave(torch.arange(len(examples)), examples.sizes)
    counts = torch.bincount(owners * classes + examples.y.cpu(), minlength=len(examples) * classes)
    return counts.view(-1, classes)


def _of_role(data: ClientData, role: str) -> Examples:
    if role == "reward":
        return data.train if data.holdout is None else data.holdout
    return data.train if role == "train" else data.test


def _fit(examples: Examples, role: str, model: Model, row: Tensor, first: int) -> Examples:
    """In the model's type and on its device, with labels that it has an answer for."""
    who = f"client {{}} ({role})".replace("reward", "holdout")
    examples = examples.of_type(row.dtype, who, first).to(model.device)
    model.check_examples(row, examples, who, first)
    return examples
