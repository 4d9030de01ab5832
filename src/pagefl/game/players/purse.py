"""Purse: which epochs clients of page-shared choose within their budgets.

They share a surface and each knows its own costs. So each plays the epochs that maximise `surface - price *
epochs`, with the lr that is best for them, and its price is the least one at which it can pay.
"""

from collections.abc import Callable

import numpy as np
import torch

from pagefl.core.arrays import Floats, Integers
from pagefl.game.account import Account
from pagefl.game.budgets import Budgets, Limit, shares
from pagefl.game.messages import NOBODY
from pagefl.game.protocol import Observation, Outcome

from .prices import best_at, prices_of_epochs
from .surface import NOISE, quadratic

CHOICES = 200  # numbers of epochs among which clients choose, at most
STEPS = 41  # of lr
MORE = 1e-6  # what a factor e of epochs is worth as long as nothing is known


class Purse:
    def __init__(self, budgets: Budgets, within: Callable[[Floats], Floats], free: Floats) -> None:
        """`within`: points cut to what may be played. `free`: 1 for what is searched, of lr and epochs."""
        self.budgets, self.within, self.free = budgets, within, free
        self.surface = torch.zeros(5)
        self.clients, self.account = NOBODY, Account(np.empty(0), np.empty(0))  # of this round
        self.limit = Limit(*np.empty((3, 0)))

    def points(self, round: int, clients: Integers, seen: Observation, point: Floats) -> Floats:
        """ln lr and ln epochs of each client: the point, for those that can pay for it."""
        self.clients, self.limit = clients, self.limit_of(round, clients, seen)
        epochs, lr, heights = self._choices(point)
        prices = prices_of_epochs(self.limit.epochs, heights, epochs)
        best = best_at(prices, heights, epochs)
        points = np.column_stack([lr, np.log(epochs)])[best]
        points[self.limit.epochs >= epochs[-1]] = point
        in_shares = prices * self.limit.reachable / self.limit.epoch
        self.account = Account(in_shares, np.full(len(clients), np.nan))
        return points

    def pairs(self, points: Floats) -> Floats:
        """Two moves of each client, [n, 2, 2], with no more epochs than it can pay for together."""
        most, epochs = np.floor(self.limit.epochs)[:, None], np.exp(points[..., 1])
        fewer = np.minimum(1.0, most / epochs.sum(1, keepdims=True))
        points[..., 1] = np.log(np.clip(np.floor(epochs * fewer), 1, np.maximum(1, most - 1)))
        alone = most[:, 0] < 2
        points[alone, 1] = points[alone, 0]
        return points

    def spend(self, clients: Integers, outcome: Outcome, learn: bool) -> None:
        assert outcome.costs is not None
        places = np.searchsorted(self.clients, clients)
        self.account.used[places] = shares(self.budgets.costs(outcome.costs), self.limit.budget[places])
        if learn:
            self.budgets.spend(clients, outcome.costs)

    def limit_of(self, round: int, clients: Integers, seen: Observation) -> Limit:
        assert seen.prices is not None
        return self.budgets.limit(round, clients, seen.prices)

    def _choices(self, point: Floats) -> tuple[Integers, Floats, Floats]:
        """Epochs up to the point's, the ln lr that is best for each, and the surface's height there."""
        most = max(1.0, np.rint(np.exp(point[1])))
        epochs = np.unique(np.rint(np.geomspace(1, most, CHOICES)).astype(np.int64))
        steps = np.linspace(-1, 1, STEPS) * NOISE[0] * self.free[0]
        steps = steps[np.argsort(np.abs(steps), kind="stable")]  # of lrs that are as good: the point's
        near = np.stack(np.meshgrid(point[0] + steps, np.log(epochs)), -1)  # [epochs, lr, 2]
        near = self.within(near)
        away = ((near - point) / NOISE).reshape(-1, 2)
        surface = self.surface.double().numpy()
        heights = np.einsum("ni,i->n", quadratic(away), surface).reshape(len(epochs), STEPS)
        best, rows = heights.argmax(1), np.arange(len(epochs))
        return epochs, near[rows, best, 0], heights[rows, best] + MORE * np.log(epochs)
