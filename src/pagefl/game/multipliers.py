"""Multipliers: the prices that players with a budget pay for what their moves cost.

Such a player maximises its reward subject to a cost of at most its budget. It plays for its Lagrangian,
`reward - multiplier * cost / budget`. Its multiplier rises when the budget is exceeded, and falls when some
is left (Altman: Constrained Markov Decision Processes, 1999).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pagefl.core.algorithm import State
from pagefl.core.arrays import Floats, Integers

from .account import ROUNDING

ENOUGH = 0.97  # a share of the budget; who spends more than that, but no more than all, keeps its price
FIRST = 0.3  # size of the first step, in spreads of the rewards
LARGEST = 0.97  # weight of the cost in a Lagrangian: its multiplier is at most 32 spreads of the rewards


class Charge(NamedTuple):
    """What some agents are charged for their actions."""

    weight: Floats  # of the cost in the Lagrangian, [agents]; the rest is the reward's
    # of actions [n, batch, actions] of the n agents at these places, as shares of the budget
    cost: Callable[[Integers, Tensor], Tensor]


class Multipliers:
    """Dual ascent with steps that need no tuning.

    A multiplier is a multiple of the spread of the player's rewards. A step is 1 if the budget is exceeded,
    and minus half the share that is left if not, over the root of the sum of all steps squared (AdaGrad):
    steps shrink as they add up, and at rest a budget is exceeded more rarely than some of it is left.
    """

    def __init__(self, players: int) -> None:
        self.tensors: State = {
            "multiplier": torch.zeros(players, dtype=torch.float64),
            "steps": torch.zeros(players, dtype=torch.float64),  # squared, summed
        }

    def of(self, who: Integers) -> Floats:
        return self.tensors["multiplier"].numpy()[who]

    def weight(self, who: Integers) -> Floats:
        """Of the cost, if it and the reward's add up to one: bounded, as an agent's inputs should be."""
        return self.of(who) / (1 + self.of(who))

    def learn(self, who: Integers, used: Floats) -> None:
        """`used`: costs as shares of budgets."""
        step = np.where(used > 1 + ROUNDING, 1.0, np.minimum(0.0, used - ENOUGH) / 2)
        multiplier, steps = (value.numpy() for value in self.tensors.values())
        steps[who] += step**2
        moved = multiplier[who] + FIRST * step / np.sqrt(np.maximum(steps[who], 1e-12))
        multiplier[who] = np.clip(moved, 0.0, LARGEST / (1 - LARGEST))
