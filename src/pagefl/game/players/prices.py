"""Prices of epochs that are solved for, by clients who know what epochs are worth and what they cost.

The price of a budget is the least one at which the best choice is within it. It is what dual ascent ends at.
"""

import numpy as np

from pagefl.core.arrays import Floats, Integers

TIE = 1e-9  # share of a price


def prices_of_epochs(paid: Floats, heights: Floats, epochs: Integers) -> Floats:
    """For each client, the least price of an epoch at which it chooses no more epochs than it can pay.

    `heights`: what these numbers of epochs are worth; they ascend, and the first can be paid.
    """
    slopes = np.full((len(epochs), len(epochs)), -np.inf)  # from each choice to each larger one
    rise, run = heights - heights[:, None], epochs - epochs[:, None]
    np.divide(rise, run, out=slopes, where=run > 0)
    prices, payable = np.zeros(len(paid)), np.searchsorted(epochs, paid, side="right")
    for count in np.unique(payable[payable < len(epochs)]):
        prices[payable == count] = max(0.0, slopes[:count, count:].max(1).min())
    return prices


def best_at(prices: Floats, heights: Floats, epochs: Integers) -> Integers:
    """The place of the choice with the largest `height - price * epochs`, for each price."""
    dearer = prices[:, None] * (1 + TIE)  # of two that are as good, the one with fewer epochs
    return np.asarray((heights - dearer * epochs).argmax(1))
