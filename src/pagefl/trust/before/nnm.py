"""Nearest-neighbour mixing. Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan: Fixing by Mixing: A
Recipe for Optimal Byzantine ML under Heterogeneity. AISTATS 2023."""

import numpy as np

from pagefl.core.arrays import Floats
from pagefl.trust.geometry import apart


def nearest_neighbours(gram: Floats, weights: Floats, hostile: int) -> Floats:
    """[clients, clients]: each update becomes the weighted mean of its nearest ones and itself."""
    count = len(weights)
    near = np.argsort(apart(gram), axis=1, kind="stable")[:, : count - hostile]
    mix = np.zeros((count, count))
    np.put_along_axis(mix, near, np.maximum(weights, 1e-300)[near], axis=1)
    return np.asarray(mix / mix.sum(1, keepdims=True))
