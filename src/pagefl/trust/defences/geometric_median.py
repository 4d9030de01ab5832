"""Geometric median, by Weiszfeld's steps. Pillutla, Kakade, Harchaoui: Robust Aggregation for Federated
Learning. IEEE Transactions on Signal Processing 2022."""

import numpy as np

from pagefl.core.arrays import Floats
from pagefl.trust.geometry import Numbers, distances

NEAREST = 1e-6  # distances below it count as this


def geometric_median(gram: Floats, weights: Floats, numbers: Numbers) -> Floats:
    """The point whose weighted distances to all updates have the smallest sum, from zero on."""
    centre: Floats | None = None
    for _ in range(numbers.steps):
        pull = weights / np.maximum(distances(gram, centre), NEAREST)
        centre = pull / pull.sum()
    assert centre is not None
    return centre
