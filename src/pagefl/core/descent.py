"""One stretch of local SGD, for a stack of clients, as data: how it is carried out is the model's business."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .batches import Batches
from .examples import Examples

Direction = Callable[[Tensor, Tensor, Tensor], Tensor]  # (rows, gradient, which rows of the stack these are)
Change = Callable[[int, Tensor, Tensor], Tensor]  # (step, owners, x): the examples as that step sees them


class Batch(NamedTuple):
    x: Tensor  # [n, batch, ...]
    y: Tensor  # [n, batch]
    weight: Tensor  # [n, batch] one over the number of real examples; zero where the batch is only padded
    offset: Tensor | None = None  # [n, classes] added to the logits


class Descended(NamedTuple):
    rows: Tensor
    anchor: Tensor | None  # where the anchor has come to
    top: Tensor | None


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
    columns: slice | None = None  # what is trained; the rest stays as it is
    offset: Tensor | None = None  # [n, classes] added to the logits: balanced softmax
    repeats: int = 1  # steps on each batch
    follow: Tensor | None = None  # [n] after each batch: anchor <- anchor + follow * (row - anchor)
    augment: Change | None = None
    top: Tensor | None = None  # [n, width] added to the last columns of the row and trained beside it, the row held fixed

    def sorted(self) -> tuple["Descent", Tensor]:
        """The same with rows by falling number of steps, so that those still at work are always the first ones."""
        order = torch.from_numpy(np.argsort(-self.batches.steps, kind="stable"))
        by_row = ("owners", "lr", "mu", "anchor", "shift", "offset", "follow", "top")
        moved = {name: value[order.to(value.device)] for name in by_row if (value := getattr(self, name)) is not None}
        batches = Batches(*(part[order.numpy()] for part in self.batches))
        return replace(self, batches=batches, **moved), order

    def walk(self) -> Iterator[tuple[int, Batch]]:
        """Of a sorted descent: for each step, how many rows are at work, and their batch."""
        device = self.examples.x.device
        positions, counts = (torch.from_numpy(part).to(device) for part in self.batches[:2])
        starts = self.examples.starts[self.owners].to(device)
        places = torch.arange(positions.shape[2], device=device)
        steps = self.batches.steps
        working = np.searchsorted(-steps, -np.arange(steps.max(initial=0)), side="left")
        for step, n in enumerate(working.tolist()):
            chosen = starts[:n, None] + positions[:n, step]
            count = counts[:n, step, None]
            x, y, weight = self.examples.x[chosen], self.examples.y[chosen], (places < count) / count
            if self.augment is not None:
                x = self.augment(step, self.owners[:n], x)
            yield n, Batch(x, y, weight, None if self.offset is None else self.offset[:n])

    def step_direction(self, rows: Tensor, gradient: Tensor, who: Tensor) -> Tensor:
        """Of a sorted descent's first rows."""
        n = len(rows)
        if self.direction is not None:
            return self.direction(rows, gradient, who)
        if self.mu is not None and self.anchor is not None:
            gradient.add_(self.mu[:n, None] * (rows - self.anchor[:n]))
        if self.shift is not None:
            gradient.add_(self.shift[:n])
        return gradient

    def step(self, rows: Tensor, direction: Tensor) -> None:
        """In place."""
        lr = rate = self.lr[: len(rows)]
        if self.clip < float("inf"):
            rate = lr * (self.clip / (direction.norm(dim=1) + 1e-6)).clamp(max=1.0)  # torch's clip_grad_norm_
        if self.weight_decay:
            rows.mul_((1 - lr * self.weight_decay)[:, None])
        rows.addcmul_(direction, -rate[:, None])
