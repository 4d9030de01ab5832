"""The surface over ln lr and ln epochs that page-shared fits: a quadratic around its point."""

import numpy as np

from pagefl.core.arrays import Floats

# standard deviations of ln lr and ln epochs while clients explore, and by how much the point moves at most
NOISE = np.array([1.0, 0.7])


def quadratic(points: Floats) -> Floats:
    lr, epochs = points.T
    return np.stack([lr, epochs, lr**2, epochs**2, lr * epochs], axis=1)


def moved(surface: Floats, by: Floats) -> Floats:
    """The same surface, up to its height, around a point that is so far away."""
    lr, epochs, lr2, epochs2, both = surface
    slope = [lr + 2 * lr2 * by[0] + both * by[1], epochs + 2 * epochs2 * by[1] + both * by[0]]
    return np.array([*slope, lr2, epochs2, both])
