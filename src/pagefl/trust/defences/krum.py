"""Krum and Multi-Krum. Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries: Byzantine
Tolerant Gradient Descent. NeurIPS 2017."""

import numpy as np

from pagefl.core.arrays import Floats
from pagefl.trust.geometry import Numbers, apart


def krum(gram: Floats, weights: Floats, numbers: Numbers) -> Floats:
    """The update that is closest to its neighbours. Weights do not matter."""
    chosen = np.zeros(len(weights))
    chosen[scores(gram, numbers.hostile).argmin()] = 1.0
    return chosen


def multi_krum(gram: Floats, weights: Floats, numbers: Numbers) -> Floats:
    """The weighted mean of the updates that are closest to their neighbours."""
    order = np.argsort(scores(gram, numbers.hostile), kind="stable")
    kept = np.zeros(len(weights))
    kept[order[: len(weights) - numbers.hostile]] = 1.0
    kept *= weights
    return kept / kept.sum() if kept.any() else weights


def scores(gram: Floats, hostile: int) -> Floats:
    """The mean squared distance of each to its nearest neighbours: as many as honest ones must have."""
    near = np.sort(apart(gram), axis=1)[:, 1 : max(2, len(gram) - hostile)]
    return np.asarray(near.mean(1)) if len(gram) > 1 else np.zeros(1)
