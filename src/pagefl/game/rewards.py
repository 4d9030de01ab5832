"""Rewards: one over the loss, times the demand ratio of the player's side."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pagefl.core.arrays import Floats


def reward(loss: npt.ArrayLike, penalty: float) -> Floats:
    """u = 1 / loss. The penalty, or else a floor, keeps a client with one class from reaching infinity."""
    return np.asarray(1.0 / np.maximum(np.asarray(loss, np.float64) + penalty, 1e-9))


@dataclass(frozen=True)
class DemandRatio:
    """server:clients. "10:1" multiplies the server's rewards by ten for its agent, "1:10" the clients'."""

    server: float = 1.0
    clients: float = 1.0

    @classmethod
    def parse(cls, text: str) -> "DemandRatio":
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
