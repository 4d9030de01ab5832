"""The min-max attack. Shejwalkar, Houmansadr: Manipulating the Byzantine: Optimizing Model Poisoning Attacks
and Defenses for Federated Learning. NDSS 2021."""

import torch
from torch import Tensor

from .scene import Scene


def collude(scene: Scene) -> Tensor:
    """All go back from the mean of the honest updates, as far as no distance shows: their largest distance to
    an honest update is the largest one between two honest updates."""
    mean = scene.honest.mean(0)
    back: Tensor = -mean / mean.norm().clamp(min=1e-30)
    furthest = torch.cdist(scene.honest, scene.honest, compute_mode="donot_use_mm_for_euclid_dist").max()
    # |mean + length * back - update| = furthest, solved for each honest update
    off = mean - scene.honest
    along = off @ back
    lengths = (along.square() + furthest.square() - off.square().sum(1)).clamp(min=0).sqrt() - along
    return (mean + lengths.min().clamp(min=0) * back).expand_as(scene.own)
