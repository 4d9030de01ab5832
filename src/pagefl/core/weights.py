"""Bounds on how much one client may count."""

import numpy as np

from .arrays import Floats


def capped_sizes(sizes: Floats, share: float) -> Floats:
    """Sizes of which none is more than `share` of their sum: larger ones count as the largest that may be.

    If that is impossible, because there are too few clients, all count the same.
    """
    if share * len(sizes) <= 1:
        return np.full_like(sizes, sizes.min(initial=np.inf))
    falling = np.sort(sizes)[::-1]
    rest = sizes.sum() - np.cumsum(falling)  # what those have that are smaller
    for count, largest in enumerate(falling):
        # With `count` of them capped: cap = share * (count * cap + what the others have).
        others = rest[count] + largest
        cap = share * others / (1 - share * count)
        if largest <= cap:
            return np.asarray(np.minimum(sizes, cap))
    raise AssertionError("the smallest of equal sizes is no more than its share")
