"""Trains the clients of a round, a chunk of rows at a time."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import rng
from .algorithm import Facts, Part, State
from .batches import Batches, draw
from .descent import Batch, Descended, Descent
from .evaluate import cross_entropy
from .examples import CHANCES, Examples
from .layout import Layout
from .model import Model


class Training(NamedTuple):
    """The settings of local SGD that are the same for everybody."""

    seed: int
    lr: float  # the task's own, for what no player decides
    batch_size: int
    weight_decay: float = 0.0
    clip: float = float("inf")
    first: int = 0  # the number of the first client: on a node that holds one of many, its own


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
    _drawn: Counter[str] = field(default_factory=Counter, init=False)  # a second training in a round has its own batches

    @property
    def layout(self) -> Layout:
        return self.model.layout

    @property
    def steps(self) -> Tensor:
        return self.epochs * -(-self.facts.sizes // self.training.batch_size)

    def train(self, rows: Tensor, **options: Any) -> Tensor:
        return self.descend(rows, **options).rows

    def descend(
        self,
        rows: Tensor,
        *,
        lr: Tensor | None = None,
        epochs: Tensor | None = None,
        mu: Tensor | float | None = None,
        part: Part = None,
        **options: Any,
    ) -> Descended:
        if mu is not None:
            mu = torch.as_tensor(mu, dtype=rows.dtype, device=rows.device).expand(len(rows))
        descent = self._descent("batches", epochs, part, lr=self.lr if lr is None else lr, mu=mu, **options)
        # A module with dropout trains alone (see runtime.paths), so its draws are its client's own.
        with rng.torch_stream(self.training.seed, "module", self.round, self._drawn["batches"], self._number(self.ids)[0]):
            return self.model.descend(rows, descent)

    def batches(self, *, epochs: Tensor | None = None, part: Part = None) -> Iterator[tuple[Tensor, Batch]]:
        descent, order = self._descent("passes", epochs, part, lr=self.lr).sorted()
        order = order.to(self.lr.device)
        for n, batch in descent.walk():
            yield order[:n], batch

    def gradient(self, rows: Tensor, batch: Batch) -> Tensor:
        return self.model.gradient(rows, batch)

    def losses(self, rows: Tensor, batch: Batch) -> Tensor:
        """Each row's mean loss on its batch."""
        return (cross_entropy(self.model.logits(rows, batch.x), batch.y) * batch.weight).sum(1)

    def _descent(self, purpose: str, epochs: Tensor | None, part: Part, **options: Any) -> Descent:
        epochs = self.epochs if epochs is None else epochs
        weight_decay, clip = self.training.weight_decay, self.training.clip
        # How often `batches` was called may depend on who is in the stack; how often `train` was does not: count apart.
        count = self._drawn[purpose]
        self._drawn[purpose] += 1
        batches = self._draw(self._keys(purpose, self.ids, count), epochs.numpy(), part)
        if (augment := self.examples.augment) is not None:

            def augmented(step: int, owners: Tensor, x: Tensor) -> Tensor:
                keys = self._keys(f"augmented {purpose}", owners, count, step)
                chances = torch.from_numpy(rng.uniforms(keys, x.shape[1] * CHANCES)).view(*x.shape[:2], CHANCES)
                return augment(x, chances.to(x.device))

            options["augment"] = augmented
        return Descent(self.examples, self.ids, batches, weight_decay=weight_decay, clip=clip, **options)

    def _draw(self, keys: Any, epochs: Any, part: Part) -> Batches:
        sizes = self.facts.sizes.numpy()
        if part is None:
            return draw(keys, sizes, epochs, self.training.batch_size)
        # One shuffle per round and client, so that (0, 0.1) and (0.1, 1) share no example. No part is ever empty.
        pool = draw(self._keys("part", self.ids), sizes, np.ones_like(sizes), int(sizes.max())).positions[:, 0]
        cuts = [np.round(sizes * share).astype(np.int64) for share in part]
        first = np.minimum(np.maximum(cuts[0], part[0] > 0), sizes - 1)
        last = np.maximum(cuts[1], first + 1)
        batches = draw(keys, last - first, epochs, self.training.batch_size)
        places = np.minimum(batches.positions + first[:, None, None], pool.shape[1] - 1)  # padding may point beyond
        return batches._replace(positions=pool[np.arange(len(sizes))[:, None, None], places])

    def _keys(self, purpose: str, who: Tensor, *counts: int) -> Any:
        numbers = self._number(who)
        return np.array([rng.key(self.training.seed, purpose, self.round, *counts, i) for i in numbers], np.uint64)

    def _number(self, who: Tensor) -> list[int]:
        """What clients are called wherever they are: their random streams follow them to a node of their own."""
        return [self.training.first + i for i in who.tolist()]
