"""Ornstein-Uhlenbeck exploration noise that fades."""

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
    """From one to zero in `rounds`."""
    return max(0.0, 1.0 - round / rounds)
