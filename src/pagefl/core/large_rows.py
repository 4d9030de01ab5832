"""Large rows are copied past the cache: they are not read again soon, and would only drive out what is.
Compiled by numba."""

import torch
from numba import njit
from torch import Tensor

from .training.plan.kept import named
from .training.simd import LANES, load, settle, stream

LARGE = 4_000_000  # numbers; smaller rows may still be in the cache when they are read


def copy(row: Tensor, to: Tensor) -> None:
    """Both are flat."""
    plain = row.dtype == to.dtype == torch.float32 and row.device.type == to.device.type == "cpu"
    if plain and row.is_contiguous() and to.is_contiguous() and len(to) >= LARGE:
        _streamed(row.numpy(), to.numpy())
    else:
        to.copy_(row)


@njit(cache=True, error_model="numpy")
@named
def _streamed(values, to):
    first = min(len(to), -to.ctypes.data % (4 * LANES) // 4)
    whole = first + (len(to) - first) // LANES * LANES
    for j in range(first):
        to[j] = values[j]
    for j in range(first, whole, LANES):
        stream(to, j, load(values, j))
    settle()
    for j in range(whole, len(to)):
        to[j] = values[j]
