"""Which examples each client uses in each step: a fresh shuffle every epoch, the last smaller batch kept."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from pagefl.core.memory import needs
from pagefl.core.rng import splitmix

Integers = npt.NDArray[np.int64]


class Batches(NamedTuple):
    positions: npt.NDArray[np.int32]  # [clients, steps, batch size] in the client's own data
    counts: npt.NDArray[np.int32]  # [clients, steps] how many of them are real
    steps: Integers  # [clients]


def draw(keys: npt.NDArray[np.uint64], sizes: Integers, epochs: Integers, batch_size: int) -> Batches:
    """Client i's batches depend on keys[i], its size and its epochs alone, never on who trains beside it."""
    batch_size = min(batch_size, int(sizes.max()))
    check_room(len(sizes), int(sizes.max()), int(epochs.max()), batch_size)
    steps = epochs * -(-sizes // batch_size)
    longest = int(steps.max())
    positions = np.zeros((len(sizes), longest, batch_size), np.int32)
    counts = np.zeros((len(sizes), longest), np.int32)
    shuffle(keys, sizes, epochs, positions, counts)
    return Batches(positions, counts, steps)


def check_room(clients: int, size: int, epochs: int, batch_size: int) -> None:
    """Of clients that are trained together, with as many examples."""
    batch_size = min(batch_size, size)
    steps = epochs * -(-size // batch_size)
    who = f"epochs = {epochs}: {steps} batches for each of {clients} clients"
    needs(4 * clients * steps * (batch_size + 1), who, "use fewer epochs")


@njit(cache=True)
def shuffle(keys, sizes, epochs, positions, counts):  # type: ignore[no-untyped-def]  # numba infers
    batch_size = positions.shape[2]
    order = np.zeros(sizes.max(), np.int32)
    for i in range(len(sizes)):
        state, size, step = keys[i], sizes[i], 0
        for j in range(size):
            order[j] = j
        for _ in range(epochs[i]):
            for j in range(size - 1, 0, -1):  # Fisher and Yates
                state, bits = splitmix(state)
                bits >>= np.uint64(32)
                other = np.int64((bits * np.uint64(j + 1)) >> np.uint64(32))
                order[j], order[other] = order[other], order[j]
            for start in range(0, size, batch_size):
                count = min(batch_size, size - start)
                counts[i, step] = count
                for j in range(count):
                    positions[i, step, j] = order[start + j]
                step += 1
