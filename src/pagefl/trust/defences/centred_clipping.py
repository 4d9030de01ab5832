"""Centred clipping. Karimireddy, He, Jaggi: Learning from History for Byzantine Robust Optimization.
ICML 2021."""

import numpy as np

from pagefl.core.arrays import Floats
from pagefl.trust.geometry import Numbers, distances, middle, within


def centred_clipping(gram: Floats, weights: Floats, numbers: Numbers) -> Floats:
    """Some steps from the model that was sent, each along the weighted mean of shortened differences."""
    centre = np.zeros(len(weights))
    for _ in range(numbers.steps):
        lengths = distances(gram, centre)
        pull = weights * within(lengths, numbers.bound * middle(lengths, weights))
        centre = (1 - pull.sum()) * centre + pull
    return centre
