"""Who takes part in a round: some of all clients, drawn anew."""

from collections.abc import Callable

import numpy as np

from . import rng
from .arrays import Flags, Integers

FEW = 1000  # clients that are looked at without a second thought
Free = Callable[[Integers], Flags]


def count_of(share: float, clients: int) -> int:
    return max(1, int(share * clients + 0.5))


def drawn(seed: int, round: int, clients: int, count: int, free: Free | None = None) -> Integers:
    """So many of them, ascending. `free`: which of some clients can take part; all if it is None.

    If fewer are free, all of those. As few as possible are looked at: there may be millions.
    """
    tried, names = min(count, clients), [round]
    while True:
        found = rng.stream(seed, "participants", *names).choice(clients, tried, replace=False)
        found = found if free is None else found[free(found)]
        if len(found) >= count or tried == clients:
            return np.sort(found[:count])
        tried = min(max(4 * tried, FEW), clients)
        names = [round, tried]
