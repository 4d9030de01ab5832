"""Local SGD and evaluation as loops over a plan's table. Compiled by numba; see `operations`."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from pagefl.core.rng import splitmix

from ..simd import LANES, cut, load, plus, same, times_plus, total
from .blas import part
from .images import enter_padded
from .kept import call, named
from .kinds import IMAGES, LINES, Work
from .windows import copy, fill, out_size

AT_ONCE = 8192  # numbers whose squares are summed in float32
TRAIN, DIFFERENTIATE, EVALUATE = range(3)


class Plan(NamedTuple):
    """A table, and how examples enter its arena."""

    rows: npt.NDArray[Any]
    code: npt.NDArray[np.int64]  # the address of each row's operation
    entry: Any
    centre: npt.NDArray[np.float32]
    scale: npt.NDArray[np.float32]
    logits: int  # where they begin
    classes: int


class Steps(NamedTuple):
    """What the steps of one client have in common. What is empty is left out."""

    lr: np.float32
    weight_decay: np.float32
    clip: np.float32
    momentum: np.float32
    mu: np.float32
    anchor_rate: np.float32
    anchor: npt.NDArray[np.float32]
    shift: npt.NDArray[np.float32]
    offset: npt.NDArray[np.float32]
    repeats: int
    ranges: npt.NDArray[np.int64]  # [n, 2] of columns that move
    live: int  # so many of them have gradients; they come first


@part
def enter(entry, x, who, centre, scale, arena):
    """Put a batch of examples [., channel, position] into the arena, as (x - centre) * scale.

    In this order a mean far from zero costs no digits.
    """
    n, channels = len(who), entry.inputs
    to = cut(arena, entry.x, entry.x + n * channels * entry.height * entry.width)
    for p in range(entry.height * entry.width):
        for i in range(n):
            o = cut(to, (p * n + i) * channels, (p * n + i + 1) * channels)
            for c in range(channels):
                o[c] = (np.float32(x[who[i], c, p]) - centre[c]) * scale[c]


@part
def expand(entry, x, who, centre, scale, arena):
    """Lay images out for their first convolution: [padded row][tap][channel][output column, example].

    The rows that one row of outputs meets are then one matrix, without a copy for each of them.
    """
    n, channels, k, stride, pad = len(who), entry.inputs, entry.kernel_w, entry.stride_w, entry.pad_w
    _, wide = out_size(entry)
    m, columns = wide * n, (entry.width + 2 * pad + stride - 1) // stride
    lines = cut(arena, entry.x, entry.x + (entry.height + 2 * entry.pad_h) * k * channels * m)
    line = cut(arena, entry.scratch, entry.scratch + stride * columns * n)
    fill(line, np.float32(0))
    fill(cut(lines, 0, entry.pad_h * k * channels * m), np.float32(0))
    fill(cut(lines, (entry.height + entry.pad_h) * k * channels * m, len(lines)), np.float32(0))
    places = np.empty(entry.width, np.int64)
    for w in range(entry.width):  # columns of one phase of the stride lie together
        places[w] = ((w + pad) % stride * columns + (w + pad) // stride) * n
    for h in range(entry.height):
        for c in range(channels):
            a, b = centre[c], scale[c]
            for i in range(n):
                pixels = cut(x[who[i], c], h * entry.width, (h + 1) * entry.width)
                for w in range(entry.width):
                    line[places[w] + i] = (np.float32(pixels[w]) - a) * b
            for tap in range(k):
                at = (tap % stride * columns + tap // stride) * n
                to = (((h + entry.pad_h) * k + tap) * channels + c) * m
                copy(cut(line, at, at + m), cut(lines, to, to + m))


@part
def squared(values, ranges):
    """The sum of squares: float32 in blocks, float64 over them."""
    result = 0.0
    for r in range(len(ranges)):
        at, end = ranges[r, 0], ranges[r, 1]
        while at + 4 * LANES <= end:
            stop = min(at + AT_ONCE, end)
            a = same(np.float32(0))
            b, c, d = a, a, a
            while at + 4 * LANES <= stop:
                v, w = load(values, at), load(values, at + LANES)
                a, b = times_plus(v, v, a), times_plus(w, w, b)
                v, w = load(values, at + 2 * LANES), load(values, at + 3 * LANES)
                c, d = times_plus(v, v, c), times_plus(w, w, d)
                at += 4 * LANES
            result += total(plus(plus(a, b), plus(c, d)))
        while at < end:
            result += values[at] * values[at]
            at += 1
    return result


@part
def pull(row, gradient, steps):
    """gradient += mu * (row - anchor) + shift, of which columns that have no gradient yet get their first."""
    for r in range(len(steps.ranges)):
        start, end = steps.ranges[r, 0], steps.ranges[r, 1]
        g, w = cut(gradient, start, end), cut(row, start, end)
        if r >= steps.live:
            fill(g, np.float32(0))
        if len(steps.anchor) and steps.mu != 0:
            anchor = cut(steps.anchor, start, end)
            for j in range(len(g)):
                g[j] += steps.mu * (w[j] - anchor[j])
        if len(steps.shift):
            shift = cut(steps.shift, start, end)
            for j in range(len(g)):
                g[j] += shift[j]


@part
def clipped(gradient, steps):
    """What a gradient is multiplied by, so that it is no longer than `clip`."""
    if steps.clip == np.inf:
        return np.float32(1)
    length = squared(gradient, steps.ranges)
    if length != length:  # not a number: let it show
        return np.float32(length)
    return np.float32(min(1.0, steps.clip / (np.sqrt(length) + 1e-6)))


@part
def move(row, gradient, steps, factor, velocity):
    """One step of SGD, whose gradient is scaled by a factor (clipping)."""
    keep, rate = np.float32(1) - steps.lr * steps.weight_decay, steps.lr * factor
    for r in range(len(steps.ranges)):
        start, end = steps.ranges[r, 0], steps.ranges[r, 1]
        g, w = cut(gradient, start, end), cut(row, start, end)
        if len(velocity):
            v = cut(velocity, start, end)
            for j in range(len(g)):
                v[j] = steps.momentum * v[j] + (factor * g[j] + steps.weight_decay * w[j])
                w[j] -= steps.lr * v[j]
        else:
            for j in range(len(g)):
                w[j] = w[j] * keep - rate * g[j]


@part
def evaluate(logits, classes, labels, first, losses, hits):
    """Loss and hit of each example of a batch."""
    for i in range(len(labels)):
        v, own = cut(logits, i * classes, (i + 1) * classes), labels[i]
        top, best = v[0], 0
        for c in range(1, classes):
            if not (v[c] <= top or top != top):
                top, best = v[c], c
        s = 0.0
        for c in range(classes):
            s += np.exp(v[c] - top)
        losses[first + i] = np.log(s) + top - v[own]
        hits[first + i] = 1.0 if best == own else 0.0


@njit(cache=True, error_model="numpy")
@named
def run(mode, plan, arena, row, gradient, velocity, x, y, positions, counts, steps, seed, losses, hits):
    """Batch after batch: train the row in place, differentiate it, or evaluate it."""
    labels = np.empty(positions.shape[1], np.int64)
    seen = 0
    for t in range(len(counts)):
        who = positions[t, : counts[t]]
        n = len(who)
        for i in range(n):
            labels[i] = y[who[i]]
        if plan.entry.kind == LINES:
            expand(plan.entry, x, who, plan.centre, plan.scale, arena)
        elif plan.entry.kind == IMAGES:
            enter_padded(plan.entry, x, who, plan.centre, plan.scale, arena)
        else:
            enter(plan.entry, x, who, plan.centre, plan.scale, arena)
        for _ in range(steps.repeats):
            seed, bits = splitmix(seed)
            for number in range(len(plan.rows)):
                own = bits + np.uint64(number)
                work = Work(n, arena, row, gradient, labels, steps.offset, own)
                call(plan.code[number], plan.rows[number], work)
            if mode == TRAIN:
                pull(row, gradient, steps)
                move(row, gradient, steps, clipped(gradient, steps), velocity)
        if mode == EVALUATE:
            logits = cut(arena, plan.logits, len(arena))
            evaluate(logits, plan.classes, cut(labels, 0, n), seen, losses, hits)
        seen += n
        if mode == TRAIN and steps.anchor_rate != 0:
            for j in range(len(row)):
                steps.anchor[j] += steps.anchor_rate * (row[j] - steps.anchor[j])
