"""Budgets: what clients may spend in a round, in seconds or in joules."""

from typing import Literal, NamedTuple

import numpy as np
import torch

from pagefl.core.algorithm import State
from pagefl.core.arrays import Floats, Integers
from pagefl.core.errors import UserError
from pagefl.devices.costs import Costs, Prices

from .account import ROUNDING
from .protocol import Setup

BudgetOf = Literal["seconds", "energy"]


class Limit(NamedTuple):
    """Of some clients in one round: an entry for each."""

    budget: Floats
    fixed: Floats  # what taking part costs
    epoch: Floats  # what each local epoch costs

    @property
    def reachable(self) -> Floats:
        """The budget; where it does not pay for one epoch, one epoch's cost: nobody can do less."""
        return np.maximum(self.budget, self.fixed + self.epoch)

    @property
    def epochs(self) -> Floats:
        """That can be paid: at least one."""
        return np.maximum(1.0, (self.reachable - self.fixed) / self.epoch * (1 + ROUNDING))

    def of(self, which: Integers) -> "Limit":
        return Limit(*(own[which] for own in self))


class Budgets:
    """Seconds are for a round. Energy is for the run: what is left of it is spread over the rounds left."""

    def __init__(self, setup: Setup, amount: float, unit: BudgetOf) -> None:
        self.rounds, self.amount, self.unit = setup.rounds, amount, unit
        self.tensors: State = {}
        if unit == "energy":
            self.tensors = {
                name: torch.zeros(setup.clients, dtype=torch.float64) for name in ("spent", "joined")
            }

    def limit(self, round: int, clients: Integers, prices: Prices) -> Limit:
        fixed, epoch = self.costs(prices.transfer), self.costs(prices.epoch)
        if self.unit == "seconds":
            return Limit(np.full(len(clients), self.amount), fixed, epoch)
        spent, joined = (self.tensors[name].numpy()[clients] for name in ("spent", "joined"))
        # a client takes part as often in the future as it did so far
        left = 1 + (self.rounds - round) * (joined + 1) / round
        return Limit(np.maximum(0.0, self.amount - spent) / left, fixed, epoch)

    def costs(self, costs: Costs) -> Floats:
        return costs.seconds if self.unit == "seconds" else costs.joules

    def spend(self, clients: Integers, costs: Costs) -> None:
        for name, value in (("spent", self.costs(costs)), ("joined", 1.0)) if self.tensors else ():
            self.tensors[name].numpy()[clients] += value


def check(setup: Setup, *, clients: float, server: float) -> None:
    """Whether players can keep these budgets."""
    for name, amount, factor, what in (
        ("budget", clients, "alpha", "the number of epochs"),
        ("server_budget", server, "p", "the weights"),
    ):
        if amount and setup.devices is None:
            raise UserError(
                f"players.{name} = {amount:g}: no device's time is simulated, so nothing has a cost; "
                "expected 0, or devices.name = 'phones'"
            )
        if amount and factor in setup.freeze:
            raise UserError(
                f"players.{name} = {amount:g}: freeze holds {factor} fixed, and a budget is kept by {what}; "
                f"expected 0, or a freeze without {factor!r}"
            )


def shares(costs: Floats, budget: Floats) -> Floats:
    """Costs as shares of budgets; infinite where nothing is left to spend."""
    return np.divide(costs, budget, out=np.full_like(costs, np.inf), where=budget > 0)
