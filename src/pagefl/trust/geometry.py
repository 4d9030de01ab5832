"""Norms and distances of updates, of the matrix of their inner products."""

from typing import NamedTuple

import numpy as np

from pagefl.core.arrays import Floats


class Numbers(NamedTuple):
    """What defences need to be told."""

    hostile: int  # the most uploads that may be hostile
    bound: float  # the largest norm of an update, as a multiple of the median
    steps: int  # of rules that approach their result


def distances(gram: Floats, centre: Floats | None = None) -> Floats:
    """Of every update from a weighted sum of them: `centre` are its weights. None: from zero."""
    squared = np.diag(gram).copy()
    if centre is not None:
        squared += centre @ gram @ centre - 2 * gram @ centre
    return np.asarray(np.sqrt(np.maximum(squared, 0.0)))


def apart(gram: Floats) -> Floats:
    """The squared distances between all pairs."""
    squared = np.diag(gram)
    return np.maximum(squared[:, None] + squared - 2 * gram, 0.0)


def middle(values: Floats, weights: Floats) -> float:
    """The weighted median; halfway between two values where the weights of both sides are equal."""
    order = np.argsort(values, kind="stable")
    values, below = values[order], np.cumsum(weights[order])
    low, high = np.searchsorted(below, below[-1] * np.array([0.5 - 1e-9, 0.5 + 1e-9]))
    return float((values[low] + values[min(high, len(values) - 1)]) / 2)


def within(lengths: Floats, longest: float) -> Floats:
    """The factors that shorten vectors to at most this length."""
    return np.minimum(1.0, longest / np.maximum(lengths, 1e-300))
