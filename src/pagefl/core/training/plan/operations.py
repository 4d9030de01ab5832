"""The operations of a plan, each over one arena of memory. Compiled by numba, one by one: see `kept`.

Activations lie as [position, example, channel] and weights of convolutions as [tap, in, out], so that every
tap of a convolution is a product of contiguous matrices. The code is strict: no `fastmath`, whose bits
differ between the process that compiles and those that load the cache. Elementwise loops are plain; sums
have an order of their own. Arrays are cut, filled and copied by `cut`, `fill` and loops: numba compiles an
assignment of slices in seconds, for the sake of its error message.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from pagefl.core.rng import splitmix

from ..simd import LANES, cut, load, minus, plus, same, times_plus, total
from . import kinds
from .blas import gemm, part
from .images import convolve_images, images_weight
from .kept import address, is_kept, operation
from .kinds import CONV, CONV_INPUT, CONV_WEIGHT, FLATTEN, FLOAT, LINEAR, LINEAR_INPUT, LINEAR_WEIGHT, LINES
from .tiles import gather, outer
from .windows import fill, out_size, reach


@operation
def convolve(op, work):
    """CONV: y = x * weight. CONV_WEIGHT: weight = x^T * y. CONV_INPUT: x += y * weight^T.

    There is one product for every tap and run of neighbouring positions.
    """
    n, memory = work.n, work.arena.ctypes.data
    weights = work.gradient.ctypes.data if op.kind == CONV_WEIGHT else work.row.ctypes.data
    x = memory + FLOAT * (op.out if op.kind == CONV_INPUT else op.x)
    y, weight = memory + FLOAT * (op.y if op.kind == CONV else op.d), weights + FLOAT * op.weight
    ci, co, k = op.inputs, op.outputs, op.kernel_h * op.kernel_w
    high, wide = out_size(op)
    middle = op.pad_h * op.kernel_w + op.pad_w  # every output meets this tap: it sets, the others add
    for t in range(k):
        tap = (t + middle) % k
        kh, kw = tap // op.kernel_w, tap % op.kernel_w
        h0, h1 = reach(op.height, kh, op.stride_h, op.pad_h, high)
        w0, w1 = reach(op.width, kw, op.stride_w, op.pad_w, wide)
        if h1 <= h0 or w1 <= w0:
            continue
        beta = 0.0 if op.kind == CONV_WEIGHT or (t == 0 and not op.adds) else 1.0
        lines, runs, length = h1 - h0, 1, w1 - w0
        if op.stride_w > 1:
            lines, runs, length = h1 - h0, w1 - w0, 1
        elif op.stride_h == 1 and w1 - w0 == op.width and wide == op.width:
            lines, runs, length = 1, 1, (h1 - h0) * wide
        w = weight + FLOAT * tap * ci * co
        for line in range(lines):
            for run in range(runs):
                o = (h0 + line) * wide + w0 + run
                i = (
                    ((h0 + line) * op.stride_h + kh - op.pad_h) * op.width
                    + (w0 + run) * op.stride_w
                    + kw
                    - op.pad_w
                )
                at, to = x + FLOAT * i * n * ci, y + FLOAT * o * n * co
                if op.kind == CONV:
                    gemm(0, 0, length * n, co, ci, at, ci, w, co, beta, to, co)
                elif op.kind == CONV_INPUT:
                    gemm(0, 1, length * n, ci, co, to, co, w, co, beta, at, ci)
                else:
                    gemm(1, 0, ci, co, length * n, at, ci, to, co, beta, w, co)
                    beta = 1.0


@operation
def convolve_lines(op, work):
    """A convolution of the examples themselves, which `expand` has laid out so that a row of outputs is one
    product."""
    forward, n, memory = op.kind == LINES, work.n, work.arena.ctypes.data
    lines, y = memory + FLOAT * op.x, memory + FLOAT * (op.y if forward else op.d)
    weight = (work.row.ctypes.data if forward else work.gradient.ctypes.data) + FLOAT * op.weight
    high, wide = out_size(op)
    k, m = op.kernel_h * op.kernel_w * op.inputs, wide * n
    for line in range(high):
        at = lines + FLOAT * line * op.stride_h * op.kernel_w * op.inputs * m
        to = y + FLOAT * line * m * op.outputs
        if forward:
            gemm(1, 0, m, op.outputs, k, at, m, weight, op.outputs, 0.0, to, op.outputs)
        else:
            gemm(0, 0, k, op.outputs, m, at, m, to, op.outputs, 0.0 if line == 0 else 1.0, weight, op.outputs)


@operation
def linear(op, work):
    forward, back = op.kind == LINEAR, op.kind == LINEAR_INPUT
    memory, weights = work.arena.ctypes.data, work.row.ctypes.data
    if op.kind == LINEAR_WEIGHT:
        weights = work.gradient.ctypes.data
    x, y = memory + FLOAT * (op.out if back else op.x), memory + FLOAT * (op.y if forward else op.d)
    weight = weights + FLOAT * op.weight
    m, ci, co = op.height * op.width * work.n, op.inputs, op.outputs
    if forward:
        gemm(0, 1, m, co, ci, x, ci, weight, ci, 0.0, y, co)
    elif not back:
        gemm(1, 0, co, ci, m, y, co, x, ci, 0.0, weight, ci)
    else:
        gemm(0, 0, m, ci, co, y, co, weight, ci, 1.0 if op.adds else 0.0, x, ci)


@part
def summed(values, at, count):
    """Of count numbers, in an order that does not depend on the machine."""
    result = np.float32(0)
    whole = count // LANES * LANES
    if whole:
        lanes = load(values, at)
        for c in range(at + LANES, at + whole, LANES):
            lanes = plus(lanes, load(values, c))
        result = total(lanes)
    for c in range(at + whole, at + count):
        result += values[c]
    return result


@part
def squares(values, at, count, centre):
    """The sum of (value - centre)^2."""
    result = np.float32(0)
    whole = count // LANES * LANES
    if whole:
        middle = same(centre)
        lanes = same(np.float32(0))
        for c in range(at, at + whole, LANES):
            away = minus(load(values, c), middle)
            lanes = times_plus(away, away, lanes)
        result = total(lanes)
    for c in range(at + whole, at + count):
        result += (values[c] - centre) * (values[c] - centre)
    return result


@part
def scales(op, work):
    """What an epilogue multiplies by and adds, both [example, channel]."""
    m = work.n * op.inputs
    return cut(work.arena, op.scratch, op.scratch + m), cut(work.arena, op.scratch + m, op.scratch + 2 * m)


@operation
def moments(op, work):
    """A group norm as y * a + b, with a and b [example, channel]. `stats` keeps each group's mean and 1 /
    deviation.

    Sums run around each channel's first position, so that a mean far from zero costs no digits.
    """
    n, arena, row = work.n, work.arena, work.row
    positions, channels = op.height * op.width, op.inputs
    m, group = n * channels, channels // op.groups
    y, stats = cut(arena, op.y, op.y + positions * m), cut(arena, op.stats, op.stats + 2 * n * op.groups)
    a, b = scales(op, work)
    fill(a, np.float32(0))
    fill(b, np.float32(0))
    first = cut(y, 0, m)
    for p in range(1, positions):
        v = cut(y, p * m, (p + 1) * m)
        for j in range(m):
            away = v[j] - first[j]
            a[j] += away
            b[j] += away * away
    share = np.float32(1.0 / positions)
    for j in range(m):
        moved = a[j] * share
        b[j] -= a[j] * moved
        a[j] = first[j] + moved
    for i in range(n * op.groups):
        at = i * group
        mean = summed(a, at, group) / np.float32(group)
        spread = summed(b, at, group) + np.float32(positions) * squares(a, at, group, mean)
        rate = np.float32(1.0) / np.sqrt(
            max(spread, np.float32(0)) / np.float32(positions * group) + op.number
        )
        stats[2 * i], stats[2 * i + 1] = mean, rate
        c0 = i % op.groups * group
        if op.weight >= 0:
            gamma, beta = (
                cut(row, op.weight + c0, op.weight + c0 + group),
                cut(row, op.bias + c0, op.bias + c0 + group),
            )
            for c in range(group):
                scale = rate * gamma[c]
                a[at + c] = scale
                b[at + c] = beta[c] - mean * scale
        else:
            fill(cut(a, at, at + group), rate)
            fill(cut(b, at, at + group), -mean * rate)


@operation
def shift(op, work):
    """A bias as y * a + b; or no bias."""
    a, b = scales(op, work)
    fill(a, np.float32(1))
    if op.bias < 0:
        fill(b, np.float32(0))
        return
    bias = cut(work.row, op.bias, op.bias + op.inputs)
    for i in range(work.n):
        for c in range(op.inputs):
            b[i * op.inputs + c] = bias[c]


@operation
def epilogue(op, work):
    """out = relu(y * a + b + residual)"""
    arena, m, zero = work.arena, work.n * op.inputs, np.float32(0)
    a, b = scales(op, work)
    y, out = cut(arena, op.y, len(arena)), cut(arena, op.out, len(arena))
    for p in range(op.height * op.width):
        v, o = cut(y, p * m, (p + 1) * m), cut(out, p * m, (p + 1) * m)
        if op.residual >= 0:
            r = cut(arena, op.residual + p * m, op.residual + (p + 1) * m)
            if op.relu:
                for j in range(m):
                    z = v[j] * a[j] + b[j] + r[j]
                    o[j] = zero if z <= zero else z
            else:
                for j in range(m):
                    o[j] = v[j] * a[j] + b[j] + r[j]
        elif op.relu:
            for j in range(m):
                z = v[j] * a[j] + b[j]
                o[j] = zero if z <= zero else z
        else:
            for j in range(m):
                o[j] = v[j] * a[j] + b[j]


@operation
def pooled(op, work):
    """The largest relu(y * a + b) of each window. For training, `mask` keeps which tap it was, -1 where relu
    has cut."""
    arena, m, zero = work.arena, work.n * op.inputs, np.float32(0)
    a, b = scales(op, work)
    y, out = cut(arena, op.y, len(arena)), cut(arena, op.out, len(arena))
    high, wide = out_size(op)
    for at in range(high * wide):
        o, g = cut(out, at * m, (at + 1) * m), cut(arena, op.mask + at * m, op.mask + (at + 1) * m)
        fill(o, np.float32(-np.inf))
        if op.mask >= 0:
            fill(g, np.float32(-1))
        for tap in range(op.kernel_h * op.kernel_w):
            h = at // wide * op.stride_h + tap // op.kernel_w - op.pad_h
            w = at % wide * op.stride_w + tap % op.kernel_w - op.pad_w
            if h < 0 or h >= op.height or w < 0 or w >= op.width:
                continue
            v = cut(y, (h * op.width + w) * m, (h * op.width + w + 1) * m)
            mark = np.float32(tap)
            if op.mask >= 0:
                for j in range(m):
                    z = v[j] * a[j] + b[j]
                    more = (z > o[j]) | (z != z)  # what is not a number stays, as in torch
                    o[j] = z if more else o[j]
                    g[j] = mark if more else g[j]
            else:
                for j in range(m):
                    z = v[j] * a[j] + b[j]
                    o[j] = z if (z > o[j]) | (z != z) else o[j]
        if op.relu and op.mask >= 0:
            for j in range(m):
                below = o[j] <= zero
                o[j] = zero if below else o[j]
                g[j] = np.float32(-1) if below else g[j]
        elif op.relu:
            for j in range(m):
                o[j] = zero if o[j] <= zero else o[j]


@part
def by_channel(n, channels, sums, result):
    """Sum [example, channel] over the examples."""
    fill(result, np.float32(0))
    for i in range(n):
        s = cut(sums, i * channels, (i + 1) * channels)
        for c in range(channels):
            result[c] += s[c]


@operation
def unpool(op, work):
    """Gradients go back to where the largest numbers came from. A bias gets its own here, of the smaller
    maps."""
    arena, m, zero = work.arena, work.n * op.inputs, np.float32(0)
    d, mask = cut(arena, op.d, len(arena)), cut(arena, op.mask, len(arena))
    sums, out = cut(arena, op.scratch, op.scratch + m), cut(arena, op.out, op.out + op.height * op.width * m)
    high, wide = out_size(op)
    fill(out, zero)
    fill(sums, zero)
    for at in range(high * wide):
        q, g = cut(d, at * m, (at + 1) * m), cut(mask, at * m, (at + 1) * m)
        for tap in range(op.kernel_h * op.kernel_w):
            h = at // wide * op.stride_h + tap // op.kernel_w - op.pad_h
            w = at % wide * op.stride_w + tap % op.kernel_w - op.pad_w
            if h < 0 or h >= op.height or w < 0 or w >= op.width:
                continue
            o = cut(out, (h * op.width + w) * m, (h * op.width + w + 1) * m)
            mark = np.float32(tap)
            for j in range(m):
                o[j] += q[j] if g[j] == mark else zero
        if op.bias >= 0:
            for j in range(m):
                sums[j] += q[j] if g[j] >= zero else zero
    if op.bias >= 0:
        by_channel(work.n, op.inputs, sums, cut(work.gradient, op.bias, op.bias + op.inputs))


@operation
def epilogue_back(op, work):
    """Back through relu and bias, in place: d is then the gradient of what went in, and of the residual."""
    arena, m, zero = work.arena, work.n * op.inputs, np.float32(0)
    sums = cut(arena, op.scratch, op.scratch + m)
    d, out = cut(arena, op.d, len(arena)), cut(arena, op.x, len(arena))
    fill(sums, zero)
    for p in range(op.height * op.width):
        q = cut(d, p * m, (p + 1) * m)
        if op.relu:
            o = cut(out, p * m, (p + 1) * m)
            for j in range(m):
                q[j] = zero if o[j] <= zero else q[j]
        if op.bias >= 0:
            for j in range(m):
                sums[j] += q[j]
    if op.bias >= 0:
        by_channel(work.n, op.inputs, sums, cut(work.gradient, op.bias, op.bias + op.inputs))


@operation
def norm_back(op, work):
    """Back through relu and a group norm. d is masked in place, and is then the residual's gradient; `out`
    is y's."""
    n, arena, row, gradient = work.n, work.arena, work.row, work.gradient
    positions, channels = op.height * op.width, op.inputs
    m, group, zero = n * channels, channels // op.groups, np.float32(0)
    d, forward = cut(arena, op.d, len(arena)), cut(arena, op.x, len(arena))
    y, out = cut(arena, op.y, len(arena)), cut(arena, op.out, len(arena))
    a, b = scales(op, work)
    e, stats = cut(arena, op.scratch + 2 * m, op.scratch + 3 * m), cut(arena, op.stats, len(arena))
    for i in range(n * op.groups):
        fill(cut(e, i * group, (i + 1) * group), stats[2 * i])
    fill(a, zero)
    fill(b, zero)
    for p in range(positions):
        v, q = cut(y, p * m, (p + 1) * m), cut(d, p * m, (p + 1) * m)
        if op.relu:
            o = cut(forward, p * m, (p + 1) * m)
            for j in range(m):
                z = zero if o[j] <= zero else q[j]
                q[j] = z
                a[j] += z
                b[j] += z * (v[j] - e[j])
        else:
            for j in range(m):
                a[j] += q[j]
                b[j] += q[j] * (v[j] - e[j])
    share = np.float32(1.0 / (positions * group))
    if op.weight >= 0:
        fill(cut(gradient, op.weight, op.weight + channels), zero)
        fill(cut(gradient, op.bias, op.bias + channels), zero)
    for i in range(n * op.groups):
        at, c0 = i * group, i % op.groups * group
        mean, rate = stats[2 * i], stats[2 * i + 1]
        if op.weight >= 0:
            gamma = cut(row, op.weight + c0, op.weight + c0 + group)
            to_gamma = cut(gradient, op.weight + c0, op.weight + c0 + group)
            to_beta = cut(gradient, op.bias + c0, op.bias + c0 + group)
            for c in range(group):
                to_gamma[c] += b[at + c] * rate
                to_beta[c] += a[at + c]
            for c in range(group):
                a[at + c] *= gamma[c]
                b[at + c] *= gamma[c]
            s, q = summed(a, at, group) * share, summed(b, at, group) * rate * share
            for c in range(group):
                a[at + c] = rate * gamma[c]
        else:
            s, q = summed(a, at, group) * share, summed(b, at, group) * rate * share
            fill(cut(a, at, at + group), rate)
        # rate * (gamma * d - s - (y - mean) * rate * q)
        slope = -rate * rate * q
        fill(cut(b, at, at + group), slope)
        fill(cut(e, at, at + group), -rate * s - mean * slope)
    for p in range(positions):
        v, q, o = cut(y, p * m, (p + 1) * m), cut(d, p * m, (p + 1) * m), cut(out, p * m, (p + 1) * m)
        for j in range(m):
            o[j] = q[j] * a[j] + (v[j] * b[j] + e[j])


@operation
def mean(op, work):
    """Means of windows; padding counts as zeros."""
    x, out = cut(work.arena, op.x, len(work.arena)), cut(work.arena, op.out, len(work.arena))
    high, wide = out_size(op)
    m, share = work.n * op.inputs, np.float32(1.0 / (op.kernel_h * op.kernel_w))
    for at in range(high * wide):
        o = cut(out, at * m, (at + 1) * m)
        fill(o, np.float32(0))
        for tap in range(op.kernel_h * op.kernel_w):
            h = at // wide * op.stride_h + tap // op.kernel_w - op.pad_h
            w = at % wide * op.stride_w + tap % op.kernel_w - op.pad_w
            if 0 <= h < op.height and 0 <= w < op.width:
                v = cut(x, (h * op.width + w) * m, (h * op.width + w + 1) * m)
                for j in range(m):
                    o[j] += v[j]
        for j in range(m):
            o[j] *= share


@operation
def mean_back(op, work):
    d, out = cut(work.arena, op.d, len(work.arena)), cut(work.arena, op.out, len(work.arena))
    high, wide = out_size(op)
    m, share = work.n * op.inputs, np.float32(1.0 / (op.kernel_h * op.kernel_w))
    if not op.adds:
        fill(cut(out, 0, op.height * op.width * m), np.float32(0))
    for at in range(high * wide):
        q = cut(d, at * m, (at + 1) * m)
        for tap in range(op.kernel_h * op.kernel_w):
            h = at // wide * op.stride_h + tap // op.kernel_w - op.pad_h
            w = at % wide * op.stride_w + tap % op.kernel_w - op.pad_w
            if 0 <= h < op.height and 0 <= w < op.width:
                o = cut(out, (h * op.width + w) * m, (h * op.width + w + 1) * m)
                for j in range(m):
                    o[j] += q[j] * share


@operation
def flatten(op, work):
    """[position, example, channel] -> [example, channel, position], or of a text [example, position,
    channel]; or back."""
    n, arena, positions, channels = work.n, work.arena, op.height * op.width, op.inputs
    x, out = cut(arena, op.x if op.kind == FLATTEN else op.d, len(arena)), cut(arena, op.out, len(arena))
    step_p, step_c = (channels, 1) if op.groups == 1 else (1, positions)
    for i in range(n):
        for p in range(positions):
            maps, row = (p * n + i) * channels, i * positions * channels + p * step_p
            if op.kind == FLATTEN:
                for c in range(channels):
                    out[row + c * step_c] = x[maps + c]
            elif op.adds:
                for c in range(channels):
                    out[maps + c] += x[row + c * step_c]
            else:
                for c in range(channels):
                    out[maps + c] = x[row + c * step_c]


@operation
def drop(op, work):
    """Zero some numbers and scale the others up, by a stream of random bits of its own."""
    arena, size = work.arena, op.height * op.width * op.inputs * work.n
    x, mask, out = (
        cut(arena, op.x, len(arena)),
        cut(arena, op.mask, len(arena)),
        cut(arena, op.out, len(arena)),
    )
    _, state = splitmix(work.seed)
    scale, zero = np.float32(1) / (np.float32(1) - op.number), np.float32(0)
    limit = np.uint64(np.float64(op.number) * 4294967296.0)
    for j in range(size):
        state, bits = splitmix(state)
        mask[j] = zero if bits >> np.uint64(32) < limit else scale
        out[j] = x[j] * mask[j]


@operation
def drop_back(op, work):
    arena, size = work.arena, op.height * op.width * op.inputs * work.n
    d, mask, out = (
        cut(arena, op.d, len(arena)),
        cut(arena, op.mask, len(arena)),
        cut(arena, op.out, len(arena)),
    )
    for j in range(size):
        out[j] = d[j] * mask[j]


@operation
def embed(op, work):
    row, channels = work.row, op.outputs
    x, out = cut(work.arena, op.x, len(work.arena)), cut(work.arena, op.out, len(work.arena))
    for at in range(op.height * work.n):
        token = np.int64(x[at])
        for c in range(channels):
            out[at * channels + c] = row[op.weight + token * channels + c]


@operation
def embed_back(op, work):
    channels = op.outputs
    x, d = cut(work.arena, op.x, len(work.arena)), cut(work.arena, op.d, len(work.arena))
    table = cut(work.gradient, op.weight, op.weight + op.groups * channels)
    fill(table, np.float32(0))
    for at in range(op.height * work.n):
        token = np.int64(x[at])
        q = cut(d, at * channels, (at + 1) * channels)
        to = cut(table, token * channels, (token + 1) * channels)
        for c in range(channels):
            to[c] += q[c]


@operation
def softmax_loss(op, work):
    """The gradient of the mean cross entropy by the logits."""
    n, classes, labels, offset = work.n, op.inputs, work.labels, work.offset
    share = np.float32(1.0 / n)
    for i in range(n):
        v = cut(work.arena, op.x + i * classes, op.x + (i + 1) * classes)
        o = cut(work.arena, op.out + i * classes, op.out + (i + 1) * classes)
        for c in range(classes):
            o[c] = v[c]
        if len(offset):
            for c in range(classes):
                o[c] += offset[c]
        top = o[0]
        for c in range(1, classes):
            top = max(top, o[c])
        s = np.float32(0)
        for c in range(classes):
            o[c] = np.exp(o[c] - top)
            s += o[c]
        rate = share / s
        for c in range(classes):
            o[c] *= rate
        o[labels[i]] -= share


@operation
def zero(op, work):
    size = op.height * op.width * op.inputs * work.n
    fill(cut(work.arena, op.out, op.out + size), np.float32(0))


@operation
def add(op, work):
    size = op.height * op.width * op.inputs * work.n
    d, out = cut(work.arena, op.d, op.d + size), cut(work.arena, op.out, op.out + size)
    for j in range(size):
        out[j] += d[j]


@operation
def copy(op, work):
    size = op.height * op.width * op.inputs * work.n
    d, out = cut(work.arena, op.d, op.d + size), cut(work.arena, op.out, op.out + size)
    for j in range(size):
        out[j] = d[j]


FUNCTIONS = {
    kinds.ZERO: zero,
    kinds.ADD: add,
    kinds.COPY: copy,
    kinds.LINES: convolve_lines,
    kinds.LINES_WEIGHT: convolve_lines,
    kinds.IMAGES: convolve_images,
    kinds.IMAGES_WEIGHT: images_weight,
    kinds.CONV: convolve,
    kinds.CONV_WEIGHT: convolve,
    kinds.CONV_INPUT: convolve,
    kinds.TILED: gather,
    kinds.TILED_WEIGHT: outer,
    kinds.TILED_INPUT: gather,
    kinds.LINEAR: linear,
    kinds.LINEAR_WEIGHT: linear,
    kinds.LINEAR_INPUT: linear,
    kinds.MOMENTS: moments,
    kinds.SHIFT: shift,
    kinds.EPILOGUE: epilogue,
    kinds.POOLED: pooled,
    kinds.NORM_BACK: norm_back,
    kinds.EPILOGUE_BACK: epilogue_back,
    kinds.UNPOOL: unpool,
    kinds.MEAN: mean,
    kinds.MEAN_BACK: mean_back,
    kinds.FLATTEN: flatten,
    kinds.FLATTEN_BACK: flatten,
    kinds.DROP: drop,
    kinds.DROP_BACK: drop_back,
    kinds.EMBED: embed,
    kinds.EMBED_BACK: embed_back,
    kinds.LOSS: softmax_loss,
}
_addresses = np.zeros(len(FUNCTIONS), np.int64)  # in this process


def addresses(table: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Where the code of each row of a table begins. What is missing is compiled."""
    found = _addresses[table["kind"]]
    if not found.all():
        for kind in set(table["kind"].tolist()):
            _addresses[kind] = address(FUNCTIONS[kind])
        found = _addresses[table["kind"]]
    return found


def are_kept(table: npt.NDArray[Any]) -> bool:
    """Whether nothing that a table needs must be compiled."""
    return all(is_kept(FUNCTIONS[kind]) for kind in set(table["kind"].tolist()))
