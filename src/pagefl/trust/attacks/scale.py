"""A boosted update. Bagdasaryan, Veit, Hua, Estrin, Shmatikov: How To Backdoor Federated Learning.
AISTATS 2020."""

from torch import Tensor

from .scene import Scene


def scale(scene: Scene) -> Tensor:
    """Each hostile client multiplies its update by the factor."""
    return scene.factor * scene.own
