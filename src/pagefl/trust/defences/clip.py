"""Norm clipping. Sun, Kairouz, Suresh, McMahan: Can You Really Backdoor Federated Learning? 2019,
arXiv:1911.07963. The largest norm is a multiple of the round's median, so it fits every task."""

from pagefl.core.arrays import Floats
from pagefl.trust.geometry import Numbers, distances, middle, within


def clip(gram: Floats, weights: Floats, numbers: Numbers) -> Floats:
    """The weighted mean of shortened updates."""
    norms = distances(gram)
    return weights * within(norms, numbers.bound * middle(norms, weights))
