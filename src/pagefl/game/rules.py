"""Losses -> rewards -> pay-offs."""

import numpy as np
import numpy.typing as npt

GAMMA = 0.99


def reward(loss: npt.ArrayLike, penalty: float) -> npt.NDArray[np.float64]:
    """u = 1 / loss. The penalty, and a floor where there is none, keep a client with one class from reaching infinity."""
    return np.asarray(1.0 / np.maximum(np.asarray(loss, np.float64) + penalty, 1e-9))
