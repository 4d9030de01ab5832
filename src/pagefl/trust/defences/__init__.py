"""The registry of defences.

Some find weights of whole updates, of the inner products of all pairs: their result is a weighted sum. The
others look at each column alone.
"""

from collections.abc import Callable

from torch import Tensor

from pagefl.core.arrays import Floats
from pagefl.trust.geometry import Numbers

from .centred_clipping import centred_clipping
from .clip import clip
from .geometric_median import geometric_median
from .krum import krum, multi_krum
from .median import median
from .trimmed_mean import trimmed_mean

OF_UPDATES: dict[str, Callable[[Floats, Floats, Numbers], Floats]] = {
    "none": lambda gram, weights, numbers: weights,
    "clip": clip,
    "geometric-median": geometric_median,
    "krum": krum,
    "multi-krum": multi_krum,
    "centred-clipping": centred_clipping,
}
OF_COLUMNS: dict[str, Callable[[Tensor, Tensor, Numbers], Tensor]] = {
    "median": median,
    "trimmed-mean": trimmed_mean,
}
