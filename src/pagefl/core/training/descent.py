"""One stretch of local SGD for a stack of clients, as data. How it is carried out is the model's business."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pagefl.core.examples import Examples

from .batches import Batches
from .options import Optimiser, Options

AUGMENTED = 32  # steps whose examples are augmented at a time
Positions = npt.NDArray[np.int32]
Change = Callable[[int, Tensor, Tensor], Tensor]  # (step, owners, x): the examples as that step sees them


class Batch(NamedTuple):
    x: Tensor  # [n, batch, ...]
    y: Tensor  # [n, batch]
    weight: Tensor  # [n, batch] one over the number of real examples; zero where the batch is only padded
    offset: Tensor | None = None  # [n, classes] added to the logits
    who: Tensor | None = None  # [n] positions in the stack; None: all of them, or it is not a stack's


class Descended(NamedTuple):
    rows: Tensor
    anchor: Tensor | None  # the anchor after the last step
    top: Tensor | None
    length: Tensor  # [n] the sum of each row's step sizes


@dataclass(frozen=True)
class Descent:
    """Local SGD with options whose `lr`, and `mu` where there is one, are [n]."""

    examples: Examples
    owners: Tensor  # [n] whose examples each row is trained on
    batches: Batches
    weight_decay: float
    clip: float
    options: Options
    augment: Change | None = None
    momentum: float = 0.0
    optimiser: Optimiser = "sgd"

    @property
    def lr(self) -> Tensor:
        assert self.options.lr is not None
        return self.options.lr

    @property
    def rates(self) -> "Rates":
        return Rates(self.lr, self.clip, self.weight_decay, self.momentum)

    @property
    def length(self) -> Tensor:
        """The sum of each row's step sizes, if they are all lr."""
        return self.lr * torch.from_numpy(self.batches.steps * self.options.repeats).to(self.lr)

    def sorted(self) -> tuple["Descent", Tensor]:
        """The same with rows by falling number of steps, so that those still at work are always the first
        ones."""
        order = torch.from_numpy(np.argsort(-self.batches.steps, kind="stable"))
        batches = Batches(*(part[order.numpy()] for part in self.batches))
        options = self.options.reordered(order)
        return replace(self, batches=batches, owners=self.owners[order], options=options), order

    def walk(self) -> Iterator[tuple[int, Batch]]:
        """For each step of a sorted descent: how many rows are at work, and their batch."""
        device = self.examples.x.device
        positions, counts = (torch.from_numpy(part).to(device) for part in self.batches[:2])
        starts = self.examples.starts[self.owners].to(device)
        places = torch.arange(positions.shape[2], device=device)
        steps, offset = self.batches.steps, self.options.offset
        working = np.searchsorted(-steps, -np.arange(steps.max(initial=0)), side="left")
        for step, n in enumerate(working.tolist()):
            chosen = starts[:n, None] + positions[:n, step]
            count = counts[:n, step, None]
            x, y, weight = self.examples.x[chosen], self.examples.y[chosen], (places < count) / count
            if self.augment is not None:
                x = self.augment(step, self.owners[:n], x)
            yield n, Batch(x, y, weight, None if offset is None else offset[:n])

    def pieces(self, i: int) -> Iterator[tuple[Tensor, Tensor, Positions, Positions]]:
        """Row i's steps, for those who carry them out one after the other: x, y, and which of these each
        step uses."""
        x, y = self.examples.client(int(self.owners[i]))
        steps = int(self.batches.steps[i])
        positions, counts = (part[i, :steps] for part in self.batches[:2])
        if self.augment is None:
            yield x, y, positions, counts
            return
        for first in range(0, steps, AUGMENTED):
            chosen = torch.from_numpy(positions[first : first + AUGMENTED]).long()
            seen = [
                self.augment(first + step, self.owners[i : i + 1], x[who][None])[0]
                for step, who in enumerate(chosen)
            ]
            places = np.arange(chosen.numel(), dtype=np.int32).reshape(chosen.shape)
            yield torch.cat(seen), y[chosen.flatten()], places, counts[first : first + AUGMENTED]

    def direction(self, rows: Tensor, gradient: Tensor, who: Tensor, anchor: Tensor | None) -> Tensor:
        """Where a step of a sorted descent's first rows goes; `anchor` may have moved since the start."""
        n, options = len(rows), self.options
        if options.direction is not None:
            return options.direction(rows, gradient, who)
        if anchor is not None and isinstance(options.mu, Tensor):
            gradient.add_(options.mu[:n, None] * (rows - anchor[:n]))
        if options.shift is not None:
            gradient.add_(options.shift[:n])
        return gradient


class Rates(NamedTuple):
    """What a step of SGD depends on besides its direction."""

    lr: Tensor  # [n]
    clip: float
    weight_decay: float
    momentum: float

    def step(self, rows: Tensor, direction: Tensor, velocity: Tensor | None) -> None:
        """In place. `velocity`: the running sum of steps, if there is momentum."""
        lr = rate = self.lr
        if self.clip < float("inf"):
            rate = lr * (self.clip / (direction.norm(dim=1) + 1e-6)).clamp(max=1.0)  # torch's clip_grad_norm_
        if velocity is not None:
            velocity.mul_(self.momentum).addcmul_(direction, (rate / lr)[:, None]).add_(
                rows, alpha=self.weight_decay
            )
            rows.addcmul_(velocity, -lr[:, None])
            return
        if self.weight_decay:
            rows.mul_((1 - lr * self.weight_decay)[:, None])
        rows.addcmul_(direction, -rate[:, None])


class Sgd:
    """Rows that an algorithm moves by steps of its own, as `train` would along the same directions."""

    def __init__(self, rows: Tensor, rates: Rates) -> None:
        self.rows = rows.clone()
        self._rates = rates
        self._velocity = torch.zeros_like(rows) if rates.momentum else None

    def step(self, who: Tensor, direction: Tensor) -> None:
        """Move the rows at these positions."""
        moving = self.rows[who]
        velocity = None if self._velocity is None else self._velocity[who]
        self._rates._replace(lr=self._rates.lr[who]).step(moving, direction, velocity)
        self.rows[who] = moving
        if self._velocity is not None and velocity is not None:
            self._velocity[who] = velocity
