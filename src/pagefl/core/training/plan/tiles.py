"""Convolutions of few channels, without sgemm: its products have an inner size of a few channels, at which it
spends as much time on its operands as on its sums.

Here all taps of four outputs are summed in registers, 16 or 24 channels at a time. Compiled by numba.
"""

import numpy as np

from ..simd import cut, load, same, spread, store, times_plus
from .blas import part
from .kept import operation
from .kinds import TILED_INPUT
from .windows import out_size, reach

MOST = 32  # channels; from there on sgemm is as fast
NARROW, WIDE = 16, 24  # channels at a time


def fits(inputs: int, outputs: int) -> bool:
    """Whether a convolution of so many channels is tiled."""
    return all(c <= MOST and (c % NARROW == 0 or c % WIDE == 0) for c in (inputs, outputs))


@part
def gather_16(x, rows, weight, taps, met, ci, co, y, to, adds):
    """y[4, 16] = the sum over the taps of x[4, ci] weight[ci, 16]. `rows`: where the four rows of x begin
    within a tap's maps; `to`: where those of y do."""
    z = same(np.float32(0))
    a0, a1 = z, z
    b0, b1 = z, z
    c0, c1 = z, z
    d0, d1 = z, z
    if adds:
        a0, a1 = load(y, to[0]), load(y, to[0] + 8)
        b0, b1 = load(y, to[1]), load(y, to[1] + 8)
        c0, c1 = load(y, to[2]), load(y, to[2] + 8)
        d0, d1 = load(y, to[3]), load(y, to[3] + 8)
    r0, r1, r2, r3 = rows[0], rows[1], rows[2], rows[3]
    for t in range(met):
        at, w = taps[t, 0], taps[t, 1]
        for k in range(at, at + ci):
            p, q = load(weight, w), load(weight, w + 8)
            v = spread(x, r0 + k)
            a0, a1 = times_plus(v, p, a0), times_plus(v, q, a1)
            v = spread(x, r1 + k)
            b0, b1 = times_plus(v, p, b0), times_plus(v, q, b1)
            v = spread(x, r2 + k)
            c0, c1 = times_plus(v, p, c0), times_plus(v, q, c1)
            v = spread(x, r3 + k)
            d0, d1 = times_plus(v, p, d0), times_plus(v, q, d1)
            w += co
    store(y, to[0], a0)
    store(y, to[0] + 8, a1)
    store(y, to[1], b0)
    store(y, to[1] + 8, b1)
    store(y, to[2], c0)
    store(y, to[2] + 8, c1)
    store(y, to[3], d0)
    store(y, to[3] + 8, d1)


@part
def gather_24(x, rows, weight, taps, met, ci, co, y, to, adds):
    """y[4, 24] = the sum over the taps of x[4, ci] weight[ci, 24]. `rows`: where the four rows of x begin
    within a tap's maps; `to`: where those of y do."""
    z = same(np.float32(0))
    a0, a1, a2 = z, z, z
    b0, b1, b2 = z, z, z
    c0, c1, c2 = z, z, z
    d0, d1, d2 = z, z, z
    if adds:
        a0, a1, a2 = load(y, to[0]), load(y, to[0] + 8), load(y, to[0] + 16)
        b0, b1, b2 = load(y, to[1]), load(y, to[1] + 8), load(y, to[1] + 16)
        c0, c1, c2 = load(y, to[2]), load(y, to[2] + 8), load(y, to[2] + 16)
        d0, d1, d2 = load(y, to[3]), load(y, to[3] + 8), load(y, to[3] + 16)
    r0, r1, r2, r3 = rows[0], rows[1], rows[2], rows[3]
    for t in range(met):
        at, w = taps[t, 0], taps[t, 1]
        for k in range(at, at + ci):
            p, q, r = load(weight, w), load(weight, w + 8), load(weight, w + 16)
            v = spread(x, r0 + k)
            a0, a1, a2 = times_plus(v, p, a0), times_plus(v, q, a1), times_plus(v, r, a2)
            v = spread(x, r1 + k)
            b0, b1, b2 = times_plus(v, p, b0), times_plus(v, q, b1), times_plus(v, r, b2)
            v = spread(x, r2 + k)
            c0, c1, c2 = times_plus(v, p, c0), times_plus(v, q, c1), times_plus(v, r, c2)
            v = spread(x, r3 + k)
            d0, d1, d2 = times_plus(v, p, d0), times_plus(v, q, d1), times_plus(v, r, d2)
            w += co
    store(y, to[0], a0)
    store(y, to[0] + 8, a1)
    store(y, to[0] + 16, a2)
    store(y, to[1], b0)
    store(y, to[1] + 8, b1)
    store(y, to[1] + 16, b2)
    store(y, to[2], c0)
    store(y, to[2] + 8, c1)
    store(y, to[2] + 16, c2)
    store(y, to[3], d0)
    store(y, to[3] + 8, d1)
    store(y, to[3] + 16, d2)


@part
def outer_16(x, at, ci, d, to, co, count, gradient, first):
    """gradient[4, 16] += x[count, 4]^T d[count, 16]; at, to and first: where they begin."""
    a0, a1 = load(gradient, first), load(gradient, first + 8)
    b0, b1 = load(gradient, first + co), load(gradient, first + co + 8)
    c0, c1 = load(gradient, first + 2 * co), load(gradient, first + 2 * co + 8)
    d0, d1 = load(gradient, first + 3 * co), load(gradient, first + 3 * co + 8)
    for _ in range(count):
        p, q = load(d, to), load(d, to + 8)
        v = spread(x, at)
        a0, a1 = times_plus(v, p, a0), times_plus(v, q, a1)
        v = spread(x, at + 1)
        b0, b1 = times_plus(v, p, b0), times_plus(v, q, b1)
        v = spread(x, at + 2)
        c0, c1 = times_plus(v, p, c0), times_plus(v, q, c1)
        v = spread(x, at + 3)
        d0, d1 = times_plus(v, p, d0), times_plus(v, q, d1)
        at += ci
        to += co
    store(gradient, first, a0)
    store(gradient, first + 8, a1)
    store(gradient, first + co, b0)
    store(gradient, first + co + 8, b1)
    store(gradient, first + 2 * co, c0)
    store(gradient, first + 2 * co + 8, c1)
    store(gradient, first + 3 * co, d0)
    store(gradient, first + 3 * co + 8, d1)


@part
def outer_24(x, at, ci, d, to, co, count, gradient, first):
    """gradient[4, 24] += x[count, 4]^T d[count, 24]; at, to and first: where they begin."""
    a0, a1, a2 = load(gradient, first), load(gradient, first + 8), load(gradient, first + 16)
    b0, b1, b2 = load(gradient, first + co), load(gradient, first + co + 8), load(gradient, first + co + 16)
    c0, c1, c2 = (
        load(gradient, first + 2 * co),
        load(gradient, first + 2 * co + 8),
        load(gradient, first + 2 * co + 16),
    )
    d0, d1, d2 = (
        load(gradient, first + 3 * co),
        load(gradient, first + 3 * co + 8),
        load(gradient, first + 3 * co + 16),
    )
    for _ in range(count):
        p, q, r = load(d, to), load(d, to + 8), load(d, to + 16)
        v = spread(x, at)
        a0, a1, a2 = times_plus(v, p, a0), times_plus(v, q, a1), times_plus(v, r, a2)
        v = spread(x, at + 1)
        b0, b1, b2 = times_plus(v, p, b0), times_plus(v, q, b1), times_plus(v, r, b2)
        v = spread(x, at + 2)
        c0, c1, c2 = times_plus(v, p, c0), times_plus(v, q, c1), times_plus(v, r, c2)
        v = spread(x, at + 3)
        d0, d1, d2 = times_plus(v, p, d0), times_plus(v, q, d1), times_plus(v, r, d2)
        at += ci
        to += co
    store(gradient, first, a0)
    store(gradient, first + 8, a1)
    store(gradient, first + 16, a2)
    store(gradient, first + co, b0)
    store(gradient, first + co + 8, b1)
    store(gradient, first + co + 16, b2)
    store(gradient, first + 2 * co, c0)
    store(gradient, first + 2 * co + 8, c1)
    store(gradient, first + 2 * co + 16, c2)
    store(gradient, first + 3 * co, d0)
    store(gradient, first + 3 * co + 8, d1)
    store(gradient, first + 3 * co + 16, d2)


@part
def meets(op, at, back, n, taps):
    """The taps that meet an output, or going back an input, and how many these are: where the maps and the
    matrix of each begin."""
    high, wide = out_size(op)
    own = op.width if back else wide
    h, w, met = at // own, at % own, 0
    for tap in range(op.kernel_h * op.kernel_w):
        kh, kw = tap // op.kernel_w, tap % op.kernel_w
        if back:
            up, left = h + op.pad_h - kh, w + op.pad_w - kw
            if up < 0 or left < 0 or up % op.stride_h or left % op.stride_w:
                continue
            i, j = up // op.stride_h, left // op.stride_w
            if i >= high or j >= wide:
                continue
            place = (i * wide + j) * n * op.outputs
        else:
            i, j = h * op.stride_h + kh - op.pad_h, w * op.stride_w + kw - op.pad_w
            if i < 0 or i >= op.height or j < 0 or j >= op.width:
                continue
            place = (i * op.width + j) * n * op.inputs
        taps[met, 0], taps[met, 1] = place, tap * op.inputs * op.outputs
        met += 1
    return met


@part
def turn(op, weight, turned):
    """[tap, in, out] -> [tap, out, in]"""
    ci, co = op.inputs, op.outputs
    for tap in range(op.kernel_h * op.kernel_w):
        for i in range(ci):
            for o in range(co):
                turned[(tap * co + o) * ci + i] = weight[(tap * ci + i) * co + o]


@operation
def gather(op, work):
    """y = x * weight, or going back the gradient of the input, of a turned weight."""
    back, n, arena = op.kind == TILED_INPUT, work.n, work.arena
    x, y = cut(arena, op.d if back else op.x, len(arena)), cut(arena, op.out if back else op.y, len(arena))
    weight = cut(work.row, op.weight, len(work.row))
    if back:
        turned = cut(arena, op.scratch, len(arena))
        turn(op, weight, turned)
        weight = turned
    high, wide = out_size(op)
    ci, co, positions = op.inputs, op.outputs, high * wide
    if back:
        ci, co, positions = op.outputs, op.inputs, op.height * op.width
    width = WIDE if co % WIDE == 0 else NARROW
    taps = np.empty((op.kernel_h * op.kernel_w, 2), np.int64)
    rows, to = np.empty(4, np.int64), np.empty(4, np.int64)
    for at in range(positions):
        met = meets(op, at, back, n, taps)
        for channel in range(0, co, width):
            for first in range(0, n, 4):
                for j in range(4):
                    own = min(first + j, n - 1)  # the last example may be computed more than once
                    rows[j], to[j] = own * ci, (at * n + own) * co + channel
                if width == WIDE:
                    gather_24(x, rows, weight, taps, met, ci, co, y, to, op.adds)
                else:
                    gather_16(x, rows, weight, taps, met, ci, co, y, to, op.adds)
            for t in range(met):
                taps[t, 1] += width


@operation
def outer(op, work):
    """The gradient of the weight, tap by tap and line by line: what a line needs stays in the cache."""
    n, arena = work.n, work.arena
    x, d = cut(arena, op.x, len(arena)), cut(arena, op.d, len(arena))
    gradient = cut(work.gradient, op.weight, len(work.gradient))
    ci, co = op.inputs, op.outputs
    high, wide = out_size(op)
    width = WIDE if co % WIDE == 0 else NARROW
    for tap in range(op.kernel_h * op.kernel_w):
        kh, kw = tap // op.kernel_w, tap % op.kernel_w
        h0, h1 = reach(op.height, kh, op.stride_h, op.pad_h, high)
        w0, w1 = reach(op.width, kw, op.stride_w, op.pad_w, wide)
        own = tap * ci * co
        if h1 <= h0 or w1 <= w0:
            continue
        for j in range(own, own + ci * co):
            gradient[j] = np.float32(0)
        for h in range(h0, h1):
            left = (h * op.stride_h + kh - op.pad_h) * op.width + kw - op.pad_w
            runs, count = (1, (w1 - w0) * n) if op.stride_w == 1 else (w1 - w0, n)
            for run in range(runs):
                at, to = (left + (w0 + run) * op.stride_w) * n * ci, (h * wide + w0 + run) * n * co
                for i in range(0, ci, 4):
                    for o in range(0, co, width):
                        place = own + i * co + o
                        if width == WIDE:
                            outer_24(x, at + i, ci, d, to + o, co, count, gradient, place)
                        else:
                            outer_16(x, at + i, ci, d, to + o, co, count, gradient, place)
