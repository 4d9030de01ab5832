"""Compiled loops for linear-softmax models: one client's whole local training, and the evaluation of many
models.

Rows hold weight [classes, features] and then bias [classes]. In training the lanes of a vector are classes,
so weights are transposed and padded; in evaluation they are examples.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from .simd import (
    LANES,
    exponential,
    greater,
    greatest,
    if_greater,
    load,
    minus,
    plus,
    same,
    spread,
    store,
    times,
    times_plus,
    total,
)

Singles = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]


class Batched(NamedTuple):
    """Examples, and which of them each row uses in each of its steps."""

    x: Singles  # [examples, features]
    y: Integers
    starts: Integers  # [rows] the first example of the row's owner
    positions: npt.NDArray[np.int32]  # [rows, steps, batch]
    counts: npt.NDArray[np.int32]  # [rows, steps]
    steps: Integers  # [rows]


class Steps(NamedTuple):
    """`Options` as arrays. What is left out is empty."""

    lr: Singles
    weight_decay: np.float32
    clip: np.float32
    mu: Singles
    shift: Singles
    offset: Singles
    repeats: int
    anchor_rate: Singles
    momentum: np.float32


# Ten sums of eight lanes at a time, from two vectors and one number: what the sixteen registers of AVX2 hold.
BLOCK = 2 * LANES
GROUP = 5


@njit(cache=True)
def multiply(left, first, inner, right, width, z):
    """z += left @ right for GROUP rows of left: their sums with BLOCK columns of right stay in registers."""
    u0, z0 = first * inner, first * width
    u1, u2, u3, u4 = u0 + inner, u0 + 2 * inner, u0 + 3 * inner, u0 + 4 * inner
    z1, z2, z3, z4 = z0 + width, z0 + 2 * width, z0 + 3 * width, z0 + 4 * width
    for at in range(0, width, BLOCK):
        to = at + LANES
        a0, a1, a2, a3, a4 = (
            load(z, z0 + at),
            load(z, z1 + at),
            load(z, z2 + at),
            load(z, z3 + at),
            load(z, z4 + at),
        )
        b0, b1, b2, b3, b4 = (
            load(z, z0 + to),
            load(z, z1 + to),
            load(z, z2 + to),
            load(z, z3 + to),
            load(z, z4 + to),
        )
        for j in range(inner):
            a, b = load(right, j * width + at), load(right, j * width + to)
            u = spread(left, u0 + j)
            a0, b0 = times_plus(u, a, a0), times_plus(u, b, b0)
            u = spread(left, u1 + j)
            a1, b1 = times_plus(u, a, a1), times_plus(u, b, b1)
            u = spread(left, u2 + j)
            a2, b2 = times_plus(u, a, a2), times_plus(u, b, b2)
            u = spread(left, u3 + j)
            a3, b3 = times_plus(u, a, a3), times_plus(u, b, b3)
            u = spread(left, u4 + j)
            a4, b4 = times_plus(u, a, a4), times_plus(u, b, b4)
        (
            store(z, z0 + at, a0),
            store(z, z1 + at, a1),
            store(z, z2 + at, a2),
            store(z, z3 + at, a3),
            store(z, z4 + at, a4),
        )
        (
            store(z, z0 + to, b0),
            store(z, z1 + to, b1),
            store(z, z2 + to, b2),
            store(z, z3 + to, b3),
            store(z, z4 + to, b4),
        )


@njit(cache=True)
def judge(z, classes, with_loss, best, answer, summed):
    """For BLOCK examples: the largest logit, whose it is, and the sum of exp(logit - largest)."""
    for at in range(0, BLOCK, LANES):
        top, whose = load(z, at), same(np.float32(0.0))
        for c in range(1, classes):
            z_c = load(z, c * BLOCK + at)
            whose = if_greater(z_c, top, same(np.float32(c)), whose)  # of equals the first, as argmax has it
            top = greater(z_c, top)
        store(best, at, top), store(answer, at, whose)
        if with_loss:
            powers = same(np.float32(0.0))
            for c in range(classes):
                powers = plus(powers, exponential(minus(load(z, c * BLOCK + at), top)))
            store(summed, at, powers)


@njit(cache=True)
def take(x, start, stride, m, few):
    """The m examples from start, next to each other."""
    for to in range(0, len(few), BLOCK):
        if m == BLOCK:
            store(few, to, load(x, start)), store(few, to + LANES, load(x, start + LANES))
        else:
            for e in range(m):
                few[to + e] = x[start + e]
        start += stride


@njit(cache=True)
def score(rows, x, y, starts, sizes, with_loss, losses, hits):
    """Mean loss and accuracy of row i, or of the only row, on the sizes[i] examples from starts[i].

    x is [features, examples]: the lanes of a vector are examples here.
    """
    features, examples = x.shape
    flat = x.reshape(-1)
    classes = rows.shape[1] // (features + 1)
    tall = (classes + GROUP - 1) // GROUP * GROUP
    weights = np.zeros(tall * features, np.float32)
    z, few = np.zeros(tall * BLOCK, np.float32), np.zeros(features * BLOCK, np.float32)
    best, answer, summed = (
        np.zeros(BLOCK, np.float32),
        np.zeros(BLOCK, np.float32),
        np.zeros(BLOCK, np.float32),
    )
    for i in range(len(starts)):
        row = rows[min(i, len(rows) - 1)]
        for q in range(classes * features):
            weights[q] = row[q]
        end = starts[i] + sizes[i]
        loss, right = 0.0, 0
        for start in range(starts[i], end, BLOCK):
            m = min(BLOCK, end - start)
            take(flat, start, examples, m, few)
            for c in range(classes):
                bias = same(row[classes * features + c])
                store(z, c * BLOCK, bias), store(z, c * BLOCK + LANES, bias)
            for first in range(0, tall, GROUP):
                multiply(weights, first, features, few, BLOCK, z)
            judge(z, classes, with_loss, best, answer, summed)
            for e in range(m):
                right += answer[e] == y[start + e]
                if with_loss:
                    loss += np.log(summed[e]) + best[e] - z[y[start + e] * BLOCK + e]
        losses[i], hits[i] = loss / sizes[i], right / sizes[i]


@njit(cache=True)
def enter(row, classes, features, width, out):
    """Turned around, so that the classes of a feature are next to each other, and padded to whole vectors."""
    for c in range(classes):
        for j in range(features):
            out[j * width + c] = row[c * features + j]
        out[features * width + c] = row[classes * features + c]


@njit(cache=True)
def leave(weights, classes, features, width, row):
    for c in range(classes):
        for j in range(features):
            row[c * features + j] = weights[j * width + c]
        row[classes * features + c] = weights[features * width + c]


@njit(cache=True)
def backward(inputs, first, height, z, width, gradient):
    """gradient += inputs.T @ z for GROUP examples. Here the errors stay in registers: a fifth quicker than
    `multiply`."""
    u0, z0 = first * height, first * width
    u1, u2, u3, u4 = u0 + height, u0 + 2 * height, u0 + 3 * height, u0 + 4 * height
    z1, z2, z3, z4 = z0 + width, z0 + 2 * width, z0 + 3 * width, z0 + 4 * width
    for at in range(0, width, BLOCK):
        to = at + LANES
        a0, a1, a2, a3, a4 = (
            load(z, z0 + at),
            load(z, z1 + at),
            load(z, z2 + at),
            load(z, z3 + at),
            load(z, z4 + at),
        )
        b0, b1, b2, b3, b4 = (
            load(z, z0 + to),
            load(z, z1 + to),
            load(z, z2 + to),
            load(z, z3 + to),
            load(z, z4 + to),
        )
        for j in range(height):
            a, b = load(gradient, j * width + at), load(gradient, j * width + to)
            u = spread(inputs, u0 + j)
            a, b = times_plus(u, a0, a), times_plus(u, b0, b)
            u = spread(inputs, u1 + j)
            a, b = times_plus(u, a1, a), times_plus(u, b1, b)
            u = spread(inputs, u2 + j)
            a, b = times_plus(u, a2, a), times_plus(u, b2, b)
            u = spread(inputs, u3 + j)
            a, b = times_plus(u, a3, a), times_plus(u, b3, b)
            u = spread(inputs, u4 + j)
            a, b = times_plus(u, a4, a), times_plus(u, b4, b)
            store(gradient, j * width + at, a), store(gradient, j * width + to, b)


@njit(cache=True)
def softmax_error(z, start, end, label, count):
    """Logits -> (softmax - one-hot) / count, in place."""
    best = load(z, start)
    for at in range(start + LANES, end, LANES):
        best = greater(best, load(z, at))
    best = same(greatest(best))
    summed = same(np.float32(0.0))
    for at in range(start, end, LANES):
        e = exponential(minus(load(z, at), best))
        summed = plus(summed, e)
        store(z, at, e)
    share = same(np.float32(1.0) / (total(summed) * np.float32(count)))
    for at in range(start, end, LANES):
        store(z, at, times(load(z, at), share))
    z[start + label] -= np.float32(1.0) / np.float32(count)


@njit(cache=True)
def copy(a, end, out):
    for at in range(0, end, LANES):
        store(out, at, load(a, at))


@njit(cache=True)
def clear(out, start, end):
    for at in range(start, end, LANES):
        store(out, at, same(np.float32(0.0)))


@njit(cache=True)
def add(factor, a, out):
    """out += factor * a"""
    factors = same(factor)
    for at in range(0, len(out), LANES):
        store(out, at, times_plus(factors, load(a, at), load(out, at)))


@njit(cache=True)
def add_difference(factor, a, b, out):
    """out += factor * (a - b)"""
    factors = same(factor)
    for at in range(0, len(out), LANES):
        store(out, at, times_plus(factors, minus(load(a, at), load(b, at)), load(out, at)))


@njit(cache=True)
def step(w, g, v, lr, weight_decay, clip, momentum):
    rate = lr
    if clip < np.inf:
        squares = same(np.float32(0.0))
        others = squares
        for at in range(0, len(g), BLOCK):
            a, b = load(g, at), load(g, at + LANES)
            squares, others = times_plus(a, a, squares), times_plus(b, b, others)
        norm = np.sqrt(total(plus(squares, others))) + np.float32(1e-6)
        if norm > clip:
            rate *= clip / norm
    if momentum > 0:
        factor, decays, speeds, rates = same(rate / lr), same(weight_decay), same(momentum), same(-lr)
        for at in range(0, len(g), LANES):
            slope = times_plus(decays, load(w, at), times(factor, load(g, at)))
            store(v, at, times_plus(speeds, load(v, at), slope))
            store(w, at, times_plus(rates, load(v, at), load(w, at)))
        return
    decay, rates = same(np.float32(1.0) - lr * weight_decay), same(-rate)
    for at in range(0, len(g), LANES):
        store(w, at, times_plus(decay, load(w, at), times(rates, load(g, at))))


@njit(cache=True)
def descend(rows, anchor, top, examples, options):
    """Local SGD of every row, in place; `anchor` and `top` move too where they are not empty."""
    x, y, starts, positions, counts, steps = examples
    lr, weight_decay, clip, mu, shift, offset, repeats, anchor_rate, momentum = options
    features, none, one = x.shape[1], np.float32(0.0), np.float32(1.0)
    classes = rows.shape[1] // (features + 1)
    height = features + 1  # the last input is 1, for the bias
    width = (classes + BLOCK - 1) // BLOCK * BLOCK
    tall = (positions.shape[2] + GROUP - 1) // GROUP * GROUP
    size = height * width
    w, g, h, p, a = (
        np.zeros(size, np.float32),
        np.zeros(size, np.float32),
        np.zeros(size, np.float32),
        np.zeros(size, np.float32),
        np.zeros(size, np.float32),
    )
    v, u = np.zeros(size, np.float32), np.zeros(size, np.float32)  # velocities of w and a
    inputs = np.zeros(tall * height, np.float32)
    errors, top_errors = np.zeros(tall * width, np.float32), np.zeros(tall * width, np.float32)
    bare = np.zeros(tall * width, np.float32)  # logits that no class has are out of the race
    for b in range(tall):
        bare[b * width + classes : (b + 1) * width] = np.float32(-1e30)
    for i in range(rows.shape[0]):
        enter(rows[i], classes, features, width, w)
        if len(anchor):
            enter(anchor[i], classes, features, width, h)
        if len(shift):
            enter(shift[i], classes, features, width, p)
        if len(top):
            enter(top[i], classes, features, width, a)
        clear(v, 0, size)
        clear(u, 0, size)
        for at in range(steps[i]):
            count = counts[i, at]
            used = (count + GROUP - 1) // GROUP * GROUP
            inputs[count * height : used * height] = none
            for b in range(count):
                source, to = starts[i] + positions[i, at, b], b * height
                for j in range(features):
                    inputs[to + j] = x[source, j]
                inputs[to + features] = one
            for _ in range(repeats):
                copy(bare, used * width, errors)
                for first in range(0, used, GROUP):
                    multiply(inputs, first, height, w, width, errors)
                if len(top):
                    copy(errors, used * width, top_errors)
                    for first in range(0, used, GROUP):
                        multiply(inputs, first, height, a, width, top_errors)
                if len(offset):
                    for b in range(count):
                        for c in range(classes):
                            errors[b * width + c] += offset[i, c]
                for b in range(count):
                    label = y[starts[i] + positions[i, at, b]]
                    softmax_error(errors, b * width, (b + 1) * width, label, count)
                    if len(top):
                        softmax_error(top_errors, b * width, (b + 1) * width, label, count)
                clear(errors, count * width, used * width)
                clear(top_errors, count * width, used * width)
                clear(g, 0, size)
                for first in range(0, used, GROUP):
                    backward(inputs, first, height, errors, width, g)
                if len(mu):
                    add_difference(mu[i], w, h, g)
                if len(shift):
                    add(one, p, g)
                step(w, g, v, lr[i], weight_decay, clip, momentum)
                if len(top):
                    clear(g, 0, size)
                    for first in range(0, used, GROUP):
                        backward(inputs, first, height, top_errors, width, g)
                    step(a, g, u, lr[i], weight_decay, clip, momentum)
            if len(anchor_rate):
                add_difference(anchor_rate[i], w, h, h)
        leave(w, classes, features, width, rows[i])
        if len(anchor):
            leave(h, classes, features, width, anchor[i])
        if len(top):
            leave(a, classes, features, width, top[i])
