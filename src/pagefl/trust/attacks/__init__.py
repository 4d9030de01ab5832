"""The registry of attacks on uploads. `labelflip` is not among them: it changes data."""

from collections.abc import Callable

from torch import Tensor

from .alie import alie
from .collude import collude
from .gaussian import gaussian
from .ipm import ipm
from .mimic import mimic
from .scale import scale
from .scene import Scene
from .signflip import signflip

ON_UPLOADS: dict[str, Callable[[Scene], Tensor]] = {
    "signflip": signflip,
    "scale": scale,
    "gaussian": gaussian,
    "alie": alie,
    "ipm": ipm,
    "mimic": mimic,
    "collude": collude,
}
