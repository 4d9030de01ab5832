"""A little is enough. Baruch, Baruch, Goldberg: A Little Is Enough: Circumventing Defenses For Distributed
Learning. NeurIPS 2019."""

from torch import Tensor

from .line_search import strongest
from .scene import Scene


def alie(scene: Scene) -> Tensor:
    """All send the mean of the honest updates, and some standard deviations more in every column."""
    mean, spread = scene.honest.mean(0), scene.honest.std(0) if len(scene.honest) > 1 else scene.honest[0] * 0
    strength = scene.strength or strongest(
        lambda tau: float((scene.aggregated(mean + tau * spread) - mean).norm())
    )
    return (mean + strength * spread).expand_as(scene.own)
