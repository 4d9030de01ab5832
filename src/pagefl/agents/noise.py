"""Ornstein-Uhlenbeck exploration noise, and its decay."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class OuNoise:
    theta: float = 0.15
    sigma: float = 0.2
    dt: float = 0.01

    def step(self, noise: Tensor, normal: Tensor) -> Tensor:
        moved: Tensor = noise - self.theta * noise * self.dt + self.sigma * self.dt**0.5 * normal
        return moved


def fading(round: int, rounds: int) -> float:
    """Scale of the noise in a round: falls from one to zero over `rounds`."""
    return max(0.0, 1.0 - round / rounds)
