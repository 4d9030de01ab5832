"""One stretch of local SGD, for a stack of clients, as data: how it is carried out is the model's business."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .batches import Batches
from .examples import Examples

Direction = Callable[[Tensor, Tensor, Tensor], Tensor]  # (rows, gradient, which rows of the stack these are)


@dataclass(frozen=True)
class Descent:
    """row <- row - lr * (clip(direction) + weight_decay * row), direction = gradient + mu * (row - anchor) + shift."""

    examples: Examples
    owners: Tensor  # [n] whose examples each row is trained on
    batches: Batches
    lr: Tensor  # [n]
    weight_decay: float
    clip: float
    mu: Tensor | None = None  # [n]
    anchor: Tensor | None = None  # [n, columns]
    shift: Tensor | None = None  # [n, columns]
    direction: Direction | None = None  # anything else a step may do; it takes the place of the affine form

    def step_direction(self, rows: Tensor, gradient: Tensor, who: Tensor) -> Tensor:
        if self.direction is not None:
            return self.direction(rows, gradient, who)
        if self.mu is not None and self.anchor is not None:
            gradient.add_(self.mu[who, None] * (rows - self.anchor[who]))
        if self.shift is not None:
            gradient.add_(self.shift[who])
        return gradient

    def schedule(self) -> tuple[Tensor, list[int]]:
        """The rows by falling number of steps, and how many of them are still at work in each step."""
        steps = self.batches.steps
        order = np.argsort(-steps, kind="stable")
        working = np.searchsorted(-steps[order], -np.arange(steps.max(initial=0)), side="left")
        return torch.from_numpy(order), working.tolist()
