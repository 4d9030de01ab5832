"""What an algorithm may ask of local SGD: one set of options, checked once, for every path of a model."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from pagefl.core.errors import UserError

# (rows, gradient, positions of these rows in the stack)
Direction = Callable[[Tensor, Tensor, Tensor], Tensor]
Share = tuple[float, float]
Optimiser = Literal["sgd", "deltasgd"]

BY_ROW = ("lr", "mu", "anchor", "shift", "offset", "anchor_rate", "top")


@dataclass(frozen=True, kw_only=True)
class Options:
    """One stretch of local SGD for a stack of n clients.

    A step is `row <- row - lr * (clip(direction) + weight_decay * row)`, where the direction is
    `gradient + mu * (row - anchor) + shift`. With momentum, `clip(direction) + weight_decay * row` is added
    to `momentum` times the sum of the steps before. What is None is left out.

    The optimiser deltasgd chooses its own step sizes, and lr is only the first one. It takes the direction of
    a step at two places, so it calls `direction` twice.
    """

    lr: Tensor | None = None  # [n]; None: the round's own
    epochs: Tensor | None = None  # [n]; None: the round's own
    mu: Tensor | float | None = None  # a number, or [n]: pulls the row towards its anchor
    anchor: Tensor | None = None  # [n, columns]
    shift: Tensor | None = None  # [n, columns]: added to every gradient
    direction: Direction | None = None  # replaces the direction above
    optimiser: Optimiser | None = None  # None: the run's own
    columns: slice | None = None  # the columns that are trained; the others stay as they are
    offset: Tensor | None = None  # [n, classes]: added to the logits in training (balanced softmax)
    part: Share | None = None  # such as (0.0, 0.8): the share of the round's shuffled data that is used
    repeats: int = 1  # steps on each batch
    anchor_rate: Tensor | None = None  # [n]: after each batch, anchor += anchor_rate * (row - anchor)
    top: Tensor | None = None  # [n, width]: added to the row's last columns, trained with the row held fixed

    def __post_init__(self) -> None:
        if (self.mu is not None or self.anchor_rate is not None) and self.anchor is None:
            raise UserError(
                "train: mu and anchor_rate need an anchor; pass anchor=…, such as the model that was sent"
            )
        if self.direction is not None and any(value is not None for value in (self.mu, self.shift)):
            raise UserError("train: direction replaces mu and shift; pass either direction=… or those")
        if self.part is not None and not 0 <= self.part[0] < self.part[1] <= 1:
            raise UserError(
                f"train: part = {self.part}: expected two shares such as (0.0, 0.8), the first one smaller"
            )
        if self.repeats < 1:
            raise UserError(f"train: repeats = {self.repeats}: must be at least 1")
        if self.optimiser not in (None, *get_args(Optimiser)):
            valid = " or ".join(get_args(Optimiser))
            raise UserError(f"train: optimiser = {self.optimiser}: expected {valid}")

    @classmethod
    def of(cls, given: dict[str, Any]) -> "Options":
        """What an algorithm has passed to `train`."""
        valid = [field.name for field in fields(cls)]
        if unknown := [name for name in given if name not in valid]:
            raise UserError(f"train: there is no option {unknown[0]}; expected one of {', '.join(valid)}")
        return cls(**given)

    def of_stack(self, rows: Tensor) -> "Options":
        """The same options for these rows: a mu for each of them, columns that count from 0."""
        mu = (
            None
            if self.mu is None
            else torch.as_tensor(self.mu, dtype=rows.dtype, device=rows.device).expand(len(rows))
        )
        columns = None if self.columns is None else slice(*self.columns.indices(rows.shape[1])[:2])
        return replace(self, mu=mu, columns=columns)

    def reordered(self, order: Tensor) -> "Options":
        """The same options for the rows of the stack in another order."""
        found = {name: getattr(self, name) for name in BY_ROW}
        return replace(
            self,
            **{name: value[order.to(value.device)] for name, value in found.items() if value is not None},
        )
