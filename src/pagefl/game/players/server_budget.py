"""The server's budget: the seconds that the uploads took on which it relies, their mean by its weights."""

import numpy as np

from pagefl.core.arrays import Floats
from pagefl.game.account import Account
from pagefl.game.uploads import Uploads

STEPS = 60  # of a bisection: down to rounding
HIGHEST = 32.0  # no more, although the budget is exceeded: or all weight would be on the fastest client


class ServerBudget:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.account: Account | None = None  # of the last round

    def kept(self, weights: Floats, uploads: Uploads) -> Floats:
        """The weights nearest to these that are within the budget."""
        cost = uploads.seconds / self.seconds
        found, price = tilted(weights, cost)
        self.account = Account(np.array([price]), np.array([found @ cost]))
        return found

    def affords(self, weights: Floats, seconds: Floats) -> bool:
        return float(weights @ seconds) <= self.seconds


def tilted(weights: Floats, cost: Floats) -> tuple[Floats, float]:
    """The weights nearest to these (in relative entropy) whose mean cost is at most 1, and their price:
    `weights * exp(-price * cost)`."""

    def at(price: float) -> Floats:
        powers = weights * np.exp(-price * (cost - cost.min()))
        return np.asarray(powers / powers.sum())

    if weights @ cost <= 1:
        return weights, 0.0
    low, high = 0.0, 1.0
    while at(high) @ cost > 1 and high < HIGHEST:
        low, high = high, 2 * high
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle) @ cost > 1 else (low, middle)
    return at(high), high
