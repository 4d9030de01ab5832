"""The rules of the game: actions -> lr, epochs, weights; losses -> rewards; demand -> bias."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Protocol = Literal["clean", "released"]


@dataclass(frozen=True)
class Ranges:
    """What an action in [-1, 1] stands for. The released programs clip it into the range, so that most of it saturates."""

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
        """Softmax: every client counts, and the sum is one."""
        scores = action / self.temperature
        powers = np.exp(scores - scores.max())
        return np.asarray(powers / powers.sum())


def reward(loss: npt.ArrayLike, penalty: float) -> Floats:
    """u = 1 / loss. The penalty, and a floor where there is none, keep a client with one class from reaching infinity."""
    return np.asarray(1.0 / np.maximum(np.asarray(loss, np.float64) + penalty, 1e-9))


@dataclass(frozen=True)
class Bias:
    """Demand: "10:1" multiplies the server's rewards by ten before they are learned from, "1:10" the clients'."""

    server: float = 1.0
    clients: float = 1.0

    @classmethod
    def parse(cls, text: str) -> "Bias":
        parts = text.split(":")
        try:
            server, clients = (float(part) for part in parts)
        except ValueError:
            raise ValueError(f"{text!r} is not a ratio of server to clients, such as 10:1") from None
        if not (0 < server < float("inf") and 0 < clients < float("inf")):
            raise ValueError(f"{text!r}: both sides of a ratio must be positive and finite, such as 10:1")
        return cls(server, clients)

    def __str__(self) -> str:
        return f"{self.server:g}:{self.clients:g}"
