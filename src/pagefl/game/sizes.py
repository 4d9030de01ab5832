"""Claims of data sizes, cut where one client would count for too much."""

import numpy as np

from pagefl.core.arrays import Floats


def capped(sizes: Floats, share: float) -> Floats:
    """The claims, none of them more than this share of their sum; all alike if they are too few for that.

    Of two clients, either may have most of the data: nothing is cut.
    """
    count = len(sizes)
    if count <= 2 or sizes.max() <= share * sizes.sum():
        return sizes
    ordered = np.sort(sizes)[::-1]
    for cut in range(1, count):
        # the `cut` largest get the same, and that is the share of the sum
        largest = share * ordered[cut:].sum() / (1 - cut * share) if cut * share < 1 else 0.0
        if largest >= ordered[cut]:
            return np.minimum(sizes, largest)
    return np.full(count, ordered[-1])
