"""Named random streams: randomness is a function of (seed, what it is for), so a resume needs no generator state."""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import numpy as np
import torch


def key(seed: int, *names: str | int) -> int:
    """64 bits that belong to these names alone."""
    return int.from_bytes(blake2b(repr((seed, *names)).encode(), digest_size=8).digest(), "little")


def stream(seed: int, *names: str | int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key(seed, *names)))


@contextmanager
def torch_stream(seed: int, *names: str | int) -> Iterator[None]:
    """Within, torch's own draws (a module's initialisation, its dropout) come from a named stream."""
    kept = torch.get_rng_state()
    torch.set_rng_state(torch.Generator().manual_seed(key(seed, *names) >> 1).get_state())
    try:
        yield
    finally:
        torch.set_rng_state(kept)
