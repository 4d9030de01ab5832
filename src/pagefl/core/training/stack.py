"""Stack: some clients of a federation in one round, ready to train. What an algorithm sees as `clients`."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pagefl.core import rng
from pagefl.core.algorithm import Facts, State
from pagefl.core.errors import UserError
from pagefl.core.examples import CHANCES, Examples
from pagefl.core.layout import Layout

from .batches import Batches, draw
from .descent import Batch, Change, Descended, Descent, Rates, Sgd
from .model import Model
from .options import Optimiser, Options, Share


class Training(NamedTuple):
    """The settings of local SGD that are the same for all clients."""

    seed: int
    lr: float  # the task's own, for what no player decides
    batch_size: int
    weight_decay: float = 0.0
    clip: float = float("inf")
    momentum: float = 0.0
    optimiser: Optimiser = "sgd"


@dataclass
class Stack:
    """Implements `core.algorithm.Clients`."""

    model: Model
    examples: Examples
    training: Training
    round: int
    ids: Tensor  # positions in `examples`
    numbers: npt.NDArray[np.int64]  # of the clients at all positions: their random streams go by it
    sent: State
    kept: State
    facts: Facts
    lr: Tensor
    epochs: Tensor
    purpose: str = ""  # of what is trained besides the round itself: it has its own random streams
    evaluated: npt.NDArray[np.int64] = field(init=False)  # gradients of each so far, in examples
    # what was trained so far, and with which options
    trained: list[tuple[Tensor, Options]] = field(default_factory=list, init=False)
    # a second training in a round has its own batches
    _drawn: Counter[str] = field(default_factory=Counter, init=False)

    def __post_init__(self) -> None:
        self.evaluated = np.zeros(len(self.ids), np.int64)

    @property
    def layout(self) -> Layout:
        return self.model.layout

    @property
    def gradients(self) -> int:
        """Evaluated so far, in examples."""
        return int(self.evaluated.sum())

    @property
    def steps(self) -> Tensor:
        return self.epochs * -(-self.facts.sizes // self.training.batch_size)

    @property
    def momentum(self) -> float:
        return self.training.momentum

    def train(self, rows: Tensor, **options: Any) -> Tensor:
        return self.descend(rows, **options).rows

    def descend(self, rows: Tensor, **options: Any) -> Descended:
        descent = self._descent("batches", Options.of(options).of_stack(rows))
        counts = descent.batches.counts
        seen = counts.sum(1) * descent.options.repeats
        if descent.optimiser == "deltasgd":  # two gradients a step, but one in the first
            seen = 2 * seen - counts[:, 0]
        self.evaluated += seen
        # A module with dropout trains alone (see runtime.paths), so its draws are its client's own.
        with rng.torch_stream(
            *(self.training.seed, f"{self.purpose}module", self.round, self._drawn["batches"]),
            self._numbers(self.ids)[0],
        ):
            descended = self.model.descend(rows, descent)
        self.trained.append((descended.rows, descent.options))
        return descended

    def batches(
        self, *, epochs: Tensor | None = None, part: Share | None = None
    ) -> Iterator[tuple[Tensor, Batch]]:
        descent, order = self._descent("passes", Options(epochs=epochs, part=part)).sorted()
        order = order.to(self.lr.device)
        for n, batch in descent.walk():
            yield order[:n], batch._replace(who=order[:n])

    def sgd(self, rows: Tensor) -> Sgd:
        training = self.training
        if training.optimiser != "sgd":
            raise UserError(
                f"optimiser = {training.optimiser}: clients.sgd makes steps of an algorithm's own; set "
                "optimiser = sgd, or use clients.train"
            )
        return Sgd(rows, Rates(self.lr, training.clip, training.weight_decay, training.momentum))

    def gradient(self, rows: Tensor, batch: Batch) -> Tensor:
        seen = (batch.weight > 0).sum(1).cpu().numpy()
        self.evaluated[slice(len(seen)) if batch.who is None else batch.who.cpu().numpy()] += seen
        self._drawn["gradient"] += 1
        count, first = self._drawn["gradient"], self._numbers(self.ids)[0]
        purpose = f"{self.purpose}module of a gradient"
        with rng.torch_stream(self.training.seed, purpose, self.round, count, first):
            return self.model.gradient(rows, batch)

    def losses(self, rows: Tensor, batch: Batch) -> Tensor:
        """Each row's mean loss on its batch."""
        return (self.model.loss(self.model.logits(rows, batch.x), batch.y) * batch.weight).sum(1)

    def _descent(self, purpose: str, options: Options) -> Descent:
        epochs = self.epochs if options.epochs is None else options.epochs
        options = replace(options, lr=self.lr if options.lr is None else options.lr)
        # How often `batches` was called may depend on who is in the stack; how often `train` was does not:
        # count apart.
        count = self._drawn[purpose]
        self._drawn[purpose] += 1
        batches = self._draw(self._keys(purpose, self.ids, count), epochs.numpy(), options.part)
        augment = self._augmented(purpose, count)
        return Descent(
            self.examples,
            self.ids,
            batches,
            self.training.weight_decay,
            self.training.clip,
            options,
            augment,
            self.training.momentum,
            options.optimiser or self.training.optimiser,
        )

    def _augmented(self, purpose: str, count: int) -> Change | None:
        augment = self.examples.augment
        if augment is None:
            return None

        def augmented(step: int, owners: Tensor, x: Tensor) -> Tensor:
            keys = self._keys(f"augmented {purpose}", owners, count, step)
            chances = torch.from_numpy(rng.uniforms(keys, x.shape[1] * CHANCES)).view(*x.shape[:2], CHANCES)
            return augment(x, chances.to(x.device))

        return augmented

    def _draw(
        self, keys: npt.NDArray[np.uint64], epochs: npt.NDArray[np.int64], part: Share | None
    ) -> Batches:
        sizes = self.facts.sizes.numpy()
        if part is None:
            return draw(keys, sizes, epochs, self.training.batch_size)
        # One shuffle per round and client, so that (0, 0.1) and (0.1, 1) share no example. No part is ever
        # empty.
        pool = draw(self._keys("part", self.ids), sizes, np.ones_like(sizes), int(sizes.max())).positions[
            :, 0
        ]
        cuts = [np.round(sizes * share).astype(np.int64) for share in part]
        first = np.minimum(np.maximum(cuts[0], part[0] > 0), sizes - 1)
        last = np.maximum(cuts[1], first + 1)
        batches = draw(keys, last - first, epochs, self.training.batch_size)
        # padding may point beyond
        places = np.minimum(batches.positions + first[:, None, None], pool.shape[1] - 1)
        return batches._replace(positions=pool[np.arange(len(sizes))[:, None, None], places])

    def _keys(self, purpose: str, who: Tensor, *counts: int) -> npt.NDArray[np.uint64]:
        numbers = self._numbers(who)
        purpose = self.purpose + purpose
        return np.array(
            [rng.key(self.training.seed, purpose, self.round, *counts, i) for i in numbers], np.uint64
        )

    def _numbers(self, who: Tensor) -> list[int]:
        """Clients keep their numbers, and so their random streams, wherever they are."""
        found: list[int] = self.numbers[who.numpy()].tolist()
        return found
