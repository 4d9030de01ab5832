"""Noise. Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries. NeurIPS 2017."""

import torch
from torch import Tensor

from pagefl.core import rng

from .scene import Scene


def gaussian(scene: Scene) -> Tensor:
    """Each hostile client sends Gaussian noise, as long as its own update times the factor."""
    made = torch.empty_like(scene.own)
    for at, client in enumerate(scene.clients.tolist()):
        draw = rng.stream(scene.seed, "gaussian attack", scene.round, client).normal(size=made.shape[1])
        noise = torch.from_numpy(draw).to(made)
        made[at] = noise * (abs(scene.factor) * scene.own[at].norm() / noise.norm())
    return made
