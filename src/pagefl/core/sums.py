"""Sums of clients' rows in one fixed order, so that they have the same bits wherever the rows are.

Clients are the leaves of a binary tree, by their numbers; clients that are absent are left out of it. Every
node is the sum of its two children. So a machine that holds the clients of whole subtrees can add these up
alone, and whoever joins the subtrees gets the bits of one machine that holds all clients. Nothing here uses
BLAS, so the bits do not depend on the make of the processor either.
"""

from typing import NamedTuple

import numpy as np
import torch
from numba import njit
from torch import Tensor

from .arrays import Integers

COLUMNS = 512  # added up at a time, so that they stay in the cache
JOINED = 2**16  # columns of subtrees that are joined at a time, without a copy of them all
DEEPEST = 64  # levels of a tree whose leaves are numbered by 64 bits
EXACT = (torch.float32, torch.float64)  # types that are added up as they are


class Parts(NamedTuple):
    """The sums of some subtrees."""

    numbers: Integers  # of each subtree, one of its clients
    rows: Tensor


def weighted(
    rows: Tensor, places: Integers, numbers: Integers, weights: Tensor, out: Tensor | None = None
) -> Tensor:
    """The sum of weights[i] * rows[places[i]]. `numbers`: the clients' numbers, ascending."""
    out = rows.new_empty(rows.shape[1:]) if out is None else out
    if not len(places):
        return out.zero_()
    if rows.device.type != "cpu" or rows.dtype not in EXACT:
        chosen = rows[torch.from_numpy(places)].cpu()
        held = chosen.to(torch.float32) if chosen.dtype not in EXACT else chosen
        return out.copy_(weighted(held, np.arange(len(places)), numbers, weights.cpu()))
    _add_up(rows.flatten(1).numpy(), places, numbers, weights.to(rows.dtype).numpy(), out.view(-1).numpy())
    return out


def partly(rows: Tensor, first: int, numbers: Integers, weights: Tensor) -> Parts:
    """Of a block that begins with client `first`: the sums of the largest subtrees that lie in it.

    `numbers`: the clients to add up, ascending.
    """
    bounds = [np.searchsorted(numbers, tree) for tree in subtrees(first, first + len(rows))]
    spans = [(int(low), int(high)) for low, high in bounds if low < high]
    found = rows.new_empty([len(spans), *rows.shape[1:]])
    for row, (low, high) in zip(found, spans, strict=True):
        weighted(rows, numbers[low:high] - first, numbers[low:high], weights[low:high], row)
    return Parts(np.array([numbers[low] for low, _ in spans], np.int64), found)


def joined(parts: list[Parts]) -> Tensor:
    """The sum of subtrees, whatever the order in which they arrive."""
    numbers = np.concatenate([part.numbers for part in parts])
    order, rows = np.argsort(numbers), [part.rows.flatten(1) for part in parts]
    found = rows[0].new_empty(parts[0].rows.shape[1:])
    for start in range(0, found.numel(), JOINED):
        block = torch.cat([own[:, start : start + JOINED] for own in rows])
        out = found.view(-1)[start : start + JOINED]
        weighted(block, order, numbers[order], torch.ones(len(order)), out)
    return found


def subtrees(start: int, stop: int) -> list[tuple[int, int]]:
    """The fewest whole subtrees that make up start … stop - 1."""
    found = []
    while start < stop:
        size = start & -start if start else 1 << (stop - 1).bit_length()
        while start + size > stop:
            size //= 2
        found.append((start, start + size))
        start += size
    return found


@njit(cache=True)
def _add_up(rows, places, numbers, weights, out):  # type: ignore[no-untyped-def]  # numba infers
    """Leaf by leaf. A stack holds the sums of subtrees that wait for their other half."""
    count, width = len(places), len(out)
    waiting = np.empty((DEEPEST + 1, COLUMNS), rows.dtype)
    above = np.empty(DEEPEST + 1, np.int64)  # the level at which each of them joins what follows it
    for first in range(0, width, COLUMNS):
        columns = min(COLUMNS, width - first)
        depth = 0
        for leaf in range(count):
            row, weight, sums = rows[places[leaf]], weights[leaf], waiting[depth]
            for column in range(columns):
                sums[column] = weight * row[first + column]
            level = DEEPEST + 1
            if leaf + 1 < count:
                level = 0
                apart = numbers[leaf] ^ numbers[leaf + 1]
                while apart:
                    level += 1
                    apart >>= 1
            while depth and above[depth - 1] < level:
                left, right = waiting[depth - 1], waiting[depth]
                for column in range(columns):
                    left[column] += right[column]
                depth -= 1
            above[depth] = level
            depth += 1
        for column in range(columns):
            out[first + column] = waiting[0, column]
