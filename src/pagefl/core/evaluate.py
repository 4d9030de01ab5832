"""Loss and accuracy of rows on a split."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .examples import Examples

BLOCK = 512  # examples of one row that are evaluated at a time


class Scores(NamedTuple):
    """One entry per owner of examples."""

    loss: npt.NDArray[np.float64]  # mean over the owner's examples
    accuracy: npt.NDArray[np.float64]


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Per example. Written out because torch's own under vmap takes half of a step."""
    return logits.logsumexp(-1) - logits.gather(-1, y.unsqueeze(-1)).squeeze(-1)


def score(
    logits_of: Callable[[Tensor], Tensor],
    loss: Callable[[Tensor, Tensor], Tensor],
    rows: int,
    examples: Examples,
    owners: Tensor,
) -> Scores:
    """Row i on the examples of owners[i]; a single row is evaluated on the examples of every owner."""
    sizes = examples.sizes[owners]
    if rows == 1:
        index = _positions(examples.starts[owners], sizes)[None]
        real = torch.ones_like(index, dtype=torch.bool)
    else:
        places = torch.arange(int(sizes.max()))
        real = places < sizes[:, None]
        index = examples.starts[owners][:, None] + places * real
    losses = torch.zeros(index.shape, dtype=torch.float64)
    hits = torch.zeros(index.shape, dtype=torch.float64)
    for block in range(0, index.shape[1], BLOCK):
        part = index[:, block : block + BLOCK].to(examples.x.device)
        x, y = examples.x[part], examples.y[part]
        logits = logits_of(x)
        hits[:, block : block + BLOCK] = logits.argmax(-1) == y
        losses[:, block : block + BLOCK] = loss(logits, y).detach()
    return Scores(means(losses[real], sizes), means(hits[real], sizes))


def _positions(starts: Tensor, sizes: Tensor) -> Tensor:
    """starts[0], starts[0] + 1, … for sizes[0] places, then the same from starts[1], …"""
    before = sizes.cumsum(0) - sizes
    return torch.arange(int(sizes.sum())) + (starts - before).repeat_interleave(sizes)


def means(values: Tensor, sizes: Tensor) -> npt.NDArray[np.float64]:
    """Sums of an owner's values in a fixed order, so that blocks and chunks do not show."""
    bounds = (sizes.cumsum(0) - sizes).numpy()
    return np.asarray(np.add.reduceat(values.numpy(), bounds) / sizes.numpy(), np.float64)
