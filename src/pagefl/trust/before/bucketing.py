"""Bucketing. Karimireddy, He, Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing.
ICLR 2022."""

import numpy as np

from pagefl.core.arrays import Floats, Integers


def buckets(order: Integers, weights: Floats, size: int) -> Floats:
    """[buckets, clients]: the weighted mean of some updates each. `order`: of the clients, as drawn."""
    count = len(order)
    mix = np.zeros((-(-count // size), count))
    mix[np.arange(count) // size, order] = np.maximum(weights, 1e-300)[order]
    return np.asarray(mix / mix.sum(1, keepdims=True))
