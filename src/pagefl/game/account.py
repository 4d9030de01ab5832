"""What players with a budget are charged, and what they use. It is read without torch, as records are."""

from typing import NamedTuple

from pagefl.core.arrays import Floats

ROUNDING = 1e-9  # by which a cost may exceed a budget that it is made for


class Account(NamedTuple):
    """Of one round: an entry for each player."""

    multiplier: Floats  # in units of the reward
    used: Floats  # the cost as a share of the budget; above 1: exceeded
