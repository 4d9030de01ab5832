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
DEEPEST = 64  # levels of a tree whose leaves are numbered by 64 bits
EXACT = (torch.float32, torch.float64)  # types that are added up as they are


class Parts(NamedTuple):
    """The sums of some subtrees."""

    numbers: Integers  # of each subtree, one of its clients
    rows: Tensor


def weighted(rows: Tensor, places: Integers, numbers: Integers, weights: Tensor) -> Tensor:
    """The sum of weights[i] * rows[places[i]]. `numbers`: the clients' numbers, ascending."""
    if rows.device.type != "cpu" or rows.dtype not in EXACT:
        chosen = rows[torch.from_numpy(places)].cpu()
        held = chosen.to(torch.float32) if chosen.dtype not in EXACT else chosen
        found = weighted(held, np.arange(len(places)), numbers, weights.cpu())
        return found.to(rows)
    flat = rows.flatten(1)
    out = flat.new_empty(flat.shape[1]) if len(places) else flat.new_zeros(flat.shape[1])
    if len(places):
        _add_up(flat.numpy(), places, numbers, weights.to(flat.dtype).numpy(), out.numpy())
    return out.view(rows.shape[1:])


def partly(rows: Tensor, first: int, numbers: Integers, weights: Tensor) -> Parts:
    """Of a block that begins with client `first`: the sums of the largest subtrees that lie in it.

    `numbers`: the clients to add up, ascending.
    """
    found, chosen = [], []
    for start, stop in subtrees(first, first + len(rows)):
        low, high = np.searchsorted(numbers, [start, stop])
        if low < high:
            own = numbers[low:high]
            found.append(weighted(rows, own - first, own, weights[low:high]))
            chosen.append(int(own[0]))
    shape = [0, *rows.shape[1:]]
    return Parts(np.array(chosen, np.int64), torch.stack(found) if found else rows.new_zeros(shape))


def joined(parts: list[Parts]) -> Tensor:
    """The sum of subtrees, whatever the order in which they arrive."""
    numbers = np.concatenate([part.numbers for part in parts])
    rows = torch.cat([part.rows for part in parts])
    order = np.argsort(numbers)
    return weighted(rows, order, numbers[order], torch.ones(len(order)))


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
