"""Who draws noise and participants: a named stream in a simulation, the operating system in a deployment.

Whoever knows the seed knows the noise and the participants. So a simulation protects nobody: it shows what
privacy costs in accuracy.
"""

import os
from typing import Literal, Protocol

import numpy as np

from pagefl.core import rng
from pagefl.core.arrays import Floats

SUMMED = 4  # normal numbers behind one, so that the gaps between floats tell nothing of it


class Randomness(Protocol):
    @property
    def kind(self) -> Literal["simulated", "system"]: ...

    def uniforms(self, round: int, count: int) -> Floats:
        """Numbers in [0, 1)."""

    def normals(self, round: int, name: str, count: int) -> Floats:
        """`name`: of what they are added to."""


class Simulated:
    kind: Literal["simulated", "system"] = "simulated"

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def uniforms(self, round: int, count: int) -> Floats:
        return rng.stream(self.seed, "private participants", round).random(count)

    def normals(self, round: int, name: str, count: int) -> Floats:
        return rng.stream(self.seed, "privacy noise", round, name).standard_normal(count)


class System:
    """Nothing is repeated: not even by the same round, played again."""

    kind: Literal["simulated", "system"] = "system"

    def uniforms(self, round: int, count: int) -> Floats:
        return np.asarray((np.frombuffer(os.urandom(8 * count), np.uint64) >> np.uint64(11)) * 2.0**-53)

    def normals(self, round: int, name: str, count: int) -> Floats:
        """By Box and Muller. Each is a sum of several: Holohan and Braghin, Secure Random Sampling in
        Differential Privacy, ESORICS 2021."""
        total = np.zeros(count)
        for _ in range(SUMMED):
            radius, angle = self.uniforms(round, count), self.uniforms(round, count)
            total += np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle)
        return np.asarray(total / SUMMED**0.5)
