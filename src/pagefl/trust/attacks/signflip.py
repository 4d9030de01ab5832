"""Sign flipping. Li, Xu, Chen, Giannakis, Ling: RSA: Byzantine-Robust Stochastic Aggregation Methods.
AAAI 2019."""

from torch import Tensor

from .scene import Scene


def signflip(scene: Scene) -> Tensor:
    """Each hostile client goes the opposite way."""
    return -scene.own
