"""Named random streams: randomness is a function of (seed, purpose), so a resume needs no generator state."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from operator import index

import numpy as np
import numpy.typing as npt
import torch
from numba import njit


def key(seed: int, *names: str | int) -> int:
    """64 bits that belong to these names alone."""
    return int.from_bytes(blake2b(repr((seed, *names)).encode(), digest_size=8).digest(), "little")


def keys(seed: int, name: str, round: int, who: Iterable[int]) -> npt.NDArray[np.uint64]:
    """A key for each client."""
    return np.array([key(seed, name, round, client) for client in who], np.uint64)


def uniforms(keys: npt.NDArray[np.uint64], count: int) -> npt.NDArray[np.float64]:
    """For each key its own `count` numbers in [0, 1)."""
    numbers = np.empty((len(keys), count))
    _fill(keys, numbers)
    return numbers


def normals(keys: npt.NDArray[np.uint64], count: int) -> npt.NDArray[np.float64]:
    """Box and Muller's."""
    radius, angle = np.split(uniforms(keys, 2 * count), 2, axis=1)
    return np.asarray(np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle))


@njit(cache=True)
def splitmix(state):  # type: ignore[no-untyped-def]  # numba infers
    """The next state, and 64 random bits."""
    state += np.uint64(0x9E3779B97F4A7C15)
    bits = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state, bits ^ (bits >> np.uint64(31))


@njit(cache=True)
def _fill(keys, numbers):  # type: ignore[no-untyped-def]  # numba infers
    for i in range(len(keys)):
        state = keys[i]
        for j in range(numbers.shape[1]):
            state, bits = splitmix(state)
            numbers[i, j] = np.float64(bits >> np.uint64(11)) * 2.0**-53


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """NumPy's integers as seeds mean the same as Python's, though they are written otherwise."""
    return np.random.Generator(np.random.Philox(key(index(seed), *names)))


@contextmanager
def torch_stream(seed: int, *names: str | int) -> Iterator[None]:
    """Within, torch's own draws (a module's initialisation, its dropout) come from a named stream."""
    kept = torch.get_rng_state()
    torch.set_rng_state(torch.Generator().manual_seed(key(seed, *names) >> 1).get_state())
    try:
        yield
    finally:
        torch.set_rng_state(kept)
