"""Ranges: what an action in [-1, 1] stands for."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from pagefl.core.arrays import Floats, Integers

Protocol = Literal["clean", "released"]


@dataclass(frozen=True)
class Ranges:
    """lr is log-uniform, epochs are linear and rounded, weights are a softmax.

    The released programs clip actions into the range instead, so that most of them saturate.
    """

    lr_min: float
    lr_max: float
    epochs_max: int
    temperature: float = 1.0
    protocol: Protocol = "clean"

    def lr(self, action: Floats) -> Floats:
        if self.protocol == "released":
            return np.clip(action, self.lr_min, self.lr_max)
        low, high = np.log(self.lr_min), np.log(self.lr_max)
        return np.asarray(np.exp(low + (action + 1) / 2 * (high - low)))

    def epochs(self, action: Floats) -> Integers:
        if self.protocol == "released":
            return np.clip(np.rint(action * self.epochs_max), 1, self.epochs_max).astype(np.int64)
        return np.rint(1 + (action + 1) / 2 * (self.epochs_max - 1)).astype(np.int64)

    def action(self, lr: float, epochs: int) -> Floats:
        """The (clean) action that stands for these."""
        low, high = np.log(self.lr_min), np.log(self.lr_max)
        wanted = np.array([(np.log(lr) - low) / (high - low), (epochs - 1) / max(1, self.epochs_max - 1)])
        return np.asarray(np.clip(2 * wanted - 1, -1, 1))

    def weights(self, action: Floats) -> Floats:
        """Every client counts, and the sum is one."""
        scores = action / self.temperature
        powers = np.exp(scores - scores.max())
        return np.asarray(powers / powers.sum())
