"""Inner-product manipulation. Xie, Koyejo, Gupta: Fall of Empires: Breaking Byzantine-tolerant SGD by Inner
Product Manipulation. UAI 2019."""

from torch import Tensor

from .line_search import strongest
from .scene import Scene


def ipm(scene: Scene) -> Tensor:
    """All send the mean of the honest updates, times a negative number."""
    mean = scene.honest.mean(0)
    strength = scene.strength or strongest(lambda tau: float((scene.aggregated(-tau * mean) - mean).norm()))
    return (-strength * mean).expand_as(scene.own)
