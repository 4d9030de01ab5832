"""Scene: what attackers know in a round."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from pagefl.core.arrays import Integers


class Scene(NamedTuple):
    """Updates are flat: all arrays of an upload, one after the other, measured from an untrained upload."""

    own: Tensor  # the hostile clients' updates, as they have trained them, [hostile, columns]
    honest: Tensor  # everybody else's, [honest, columns]
    clients: Integers  # the numbers of the hostile clients
    round: int
    seed: int
    factor: float
    strength: float  # 0: whatever does most harm
    aggregated: Callable[
        [Tensor], Tensor
    ]  # what the server makes of it if all hostile clients send this update
