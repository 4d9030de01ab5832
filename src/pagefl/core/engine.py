"""Trains the clients of a round, a chunk of rows at a time."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import rng
from .algorithm import Facts, State
from .batches import draw
from .descent import Descent, Direction
from .examples import Examples
from .model import Model


class Training(NamedTuple):
    """The settings of local SGD that are the same for everybody."""

    seed: int
    batch_size: int
    weight_decay: float = 0.0
    clip: float = float("inf")


@dataclass
class Stack:
    """The Clients of core.algorithm: some rows of the federation, ready to train."""

    model: Model
    examples: Examples
    training: Training
    round: int
    ids: Tensor
    sent: State
    kept: State
    facts: Facts
    lr: Tensor
    epochs: Tensor
    _phase: int = field(default=0, init=False)  # a second training in one round draws its own batches

    @property
    def steps(self) -> Tensor:
        return self.epochs * -(-self.facts.sizes // self.training.batch_size)

    def train(
        self,
        rows: Tensor,
        *,
        lr: Tensor | None = None,
        epochs: Tensor | None = None,
        mu: Tensor | float | None = None,
        anchor: Tensor | None = None,
        shift: Tensor | None = None,
        direction: Direction | None = None,
    ) -> Tensor:
        seed, batch_size, weight_decay, clip = self.training
        names = ("batches", self.round, self._phase)
        self._phase += 1
        keys = np.array([rng.key(seed, *names, client) for client in self.ids.tolist()], np.uint64)
        epochs = self.epochs if epochs is None else epochs
        batches = draw(keys, self.facts.sizes.cpu().numpy(), epochs.cpu().numpy(), batch_size)
        if mu is not None:
            mu = torch.as_tensor(mu, dtype=rows.dtype, device=rows.device).expand(len(rows))
        descent = Descent(
            examples=self.examples,
            owners=self.ids,
            batches=batches,
            lr=self.lr if lr is None else lr,
            weight_decay=weight_decay,
            clip=clip,
            mu=mu,
            anchor=anchor,
            shift=shift,
            direction=direction,
        )
        with rng.torch_stream(seed, "module", *names, int(self.ids[0])):  # a module with dropout trains alone: see paths
            return self.model.descend(rows, descent)
