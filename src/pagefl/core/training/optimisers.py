"""The optimisers of local training: how rows move along their gradients.

deltasgd: Kim, Toghani, Uribe, Kyrillidis: Adaptive Federated Learning with Auto-Tuned Clients. ICLR 2024.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from pagefl.core.errors import UserError

from .descent import Rates
from .options import Optimiser

GAMMA, DELTA = 2.0, 0.1  # the paper's
Gradient = Callable[[Tensor], Tensor]  # of a step's objective: a function of the rows


class Moving(ABC):
    """A stack of rows that an optimiser moves in place. Rows that have done all their steps are the last."""

    def __init__(self, rows: Tensor, rates: Rates, columns: slice) -> None:
        self.rows, self.rates, self.columns = rows, rates, columns

    @abstractmethod
    def step(self, n: int, gradient: Gradient) -> None:
        """Move the first n rows."""

    @property
    @abstractmethod
    def length(self) -> Tensor:
        """[n] The sum of each row's step sizes."""


class Sgd(Moving):
    """One step size for the whole training, with momentum if there is one."""

    def __init__(self, rows: Tensor, rates: Rates, columns: slice) -> None:
        super().__init__(rows, rates, columns)
        self._velocity = torch.zeros_like(rows) if rates.momentum else None
        self._steps = torch.zeros_like(rates.lr)

    def step(self, n: int, gradient: Gradient) -> None:
        direction = gradient(self.rows[:n])[:, self.columns]
        velocity = None if self._velocity is None else self._velocity[:n, self.columns]
        rates = self.rates._replace(lr=self.rates.lr[:n])
        rates.step(self.rows[:n, self.columns], direction, velocity)
        self._steps[:n] += 1

    @property
    def length(self) -> Tensor:
        return self.rates.lr * self._steps


class DeltaSgd(Moving):
    """A step size for each row and step, by the curvature that the row has met on its way."""

    def __init__(self, rows: Tensor, rates: Rates, columns: slice) -> None:
        super().__init__(rows, rates, columns)
        if rates.momentum:
            raise UserError(f"momentum = {rates.momentum}: the optimiser deltasgd has none; expected 0")
        self._before: Tensor | None = None  # the rows before their last step
        self._eta, self._theta = rates.lr.clone(), torch.ones_like(rates.lr)
        self._length = torch.zeros_like(rates.lr)

    def step(self, n: int, gradient: Gradient) -> None:
        rows = self.rows[:n]
        if self._before is None:
            direction = gradient(rows)
            self._before = self.rows.clone()
        else:
            # The same objective at both places: the batch, what is added to its loss, and a dropout's draws.
            with torch.random.fork_rng(devices=[rows.device] if rows.is_cuda else []):
                there = gradient(self._before[:n])
            direction = gradient(rows)
            self._adapt(n, rows - self._before[:n], direction - there)
            self._before[:n] = rows
        eta = self._eta[:n]
        self.rates._replace(lr=eta).step(rows[:, self.columns], direction[:, self.columns], None)
        self._length[:n] += eta

    def _adapt(self, n: int, moved: Tensor, turned: Tensor) -> None:
        """The paper's Algorithm 1. Weight decay is part of the objective; the clip only shortens a step."""
        turned = turned + self.rates.weight_decay * moved
        way, turn = (part[:, self.columns].norm(dim=1) for part in (moved, turned))
        eta, theta = self._eta[:n], self._theta[:n]
        new = (1 + DELTA * theta).sqrt() * eta
        met = (way > 0) & (turn > 0)  # otherwise there is nothing to judge the curvature by
        new = torch.where(met, torch.minimum(GAMMA * way / (2 * turn), new), new)
        self._theta[:n] = torch.where(eta > 0, new / eta, 1.0)
        self._eta[:n] = new

    @property
    def length(self) -> Tensor:
        return self._length


OPTIMISERS: dict[Optimiser, type[Moving]] = {"sgd": Sgd, "deltasgd": DeltaSgd}
