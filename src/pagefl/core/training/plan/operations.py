"""The operations of a plan, and the interpreter that runs a table of them over one arena of memory.
Compiled by numba.

Activations lie as [position, example, channel] and weights of convolutions as [tap, in, out], so that every
tap of a convolution is a product of contiguous matrices. The code is strict: no `fastmath`, whose bits
differ between the process that compiles and those that load the cache. Elementwise loops are plain; sums
have an order of their own. Arrays are copied in loops: numba compiles an assignment of slices in seconds,
for the sake of its error message.
"""

import numpy as np

from pagefl.core.rng import splitmix

from ..simd import LANES, cut, load, minus, plus, same, times_plus, total
from .blas import gemm, part
from .tiles import gather, outer, turn
from .windows import out_size, reach

(
    ZERO, ADD, COPY, LINES, LINES_WEIGHT, CONV, CONV_WEIGHT, CONV_INPUT, LINEAR, LINEAR_WEIGHT, LINEAR_INPUT,
    EPILOGUE, POOLED, EPILOGUE_BACK, UNPOOL, MEAN, MEAN_BACK, FLATTEN, FLATTEN_BACK, DROP, DROP_BACK,
    EMBED, EMBED_BACK, LOSS,
) = range(24)  # fmt: skip

FORWARD, BACK = (LINES, CONV, LINEAR), (CONV_INPUT, LINEAR_INPUT)
NOTHING, BIAS, NORM = range(3)  # what an epilogue scales and shifts by

SIZES = (
    "height",
    "width",
    "inputs",
    "outputs",
    "kernel_h",
    "kernel_w",
    "stride_h",
    "stride_w",
    "pad_h",
    "pad_w",
)
SLOTS = ("x", "y", "out", "d", "residual", "stats", "scratch", "mask")  # where operands begin in the arena
OPERATION = np.dtype(
    [
        (name, np.int64)
        for name in ("kind", *SIZES, "groups", "affine", "relu", "adds", "tiled", "weight", "bias", *SLOTS)
    ]
    + [("number", np.float32)]
)
FLOAT = 4  # bytes


@part
def convolve(op, n, x, weight, y):
    """CONV: y = x * weight. CONV_WEIGHT: weight = x^T * y. CONV_INPUT: x += y * weight^T. All three are
    addresses.

    There is one product for every tap and run of neighbouring positions.
    """
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


@part
def convolve_lines(op, n, lines, weight, y):
    """A convolution of the examples themselves, which `expand` has laid out so that a row of outputs is one
    product."""
    high, wide = out_size(op)
    k, m = op.kernel_h * op.kernel_w * op.inputs, wide * n
    for line in range(high):
        at = lines + FLOAT * line * op.stride_h * op.kernel_w * op.inputs * m
        to = y + FLOAT * line * m * op.outputs
        if op.kind == LINES:
            gemm(1, 0, m, op.outputs, k, at, m, weight, op.outputs, 0.0, to, op.outputs)
        else:
            gemm(0, 0, k, op.outputs, m, at, m, to, op.outputs, 0.0 if line == 0 else 1.0, weight, op.outputs)


@part
def linear(op, m, x, weight, y):
    ci, co = op.inputs, op.outputs
    if op.kind == LINEAR:
        gemm(0, 1, m, co, ci, x, ci, weight, ci, 0.0, y, co)
    elif op.kind == LINEAR_WEIGHT:
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
def moments(op, n, y, row, stats, a, b):
    """A group norm as y * a + b, with a and b [example, channel]. `stats` keeps each group's mean and 1 /
    deviation.

    Sums run around each channel's first position, so that a mean far from zero costs no digits.
    """
    positions, channels = op.height * op.width, op.inputs
    m, group = n * channels, channels // op.groups
    a[:] = np.float32(0)
    b[:] = np.float32(0)
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
            a[at : at + group] = rate
            b[at : at + group] = -mean * rate


@part
def coefficients(op, n, y, row, stats, a, b):
    """What an epilogue scales and shifts by: nothing, a bias or a norm."""
    if op.affine == NORM:
        moments(op, n, y, row, stats, a, b)
        return
    a[:] = np.float32(1)
    if op.affine == NOTHING:
        b[:] = np.float32(0)
        return
    bias = cut(row, op.bias, op.bias + op.inputs)
    for i in range(n):
        for c in range(op.inputs):
            b[i * op.inputs + c] = bias[c]


@part
def epilogue(op, n, y, row, stats, a, b, residual, out):
    """out = relu(y * a + b + residual)"""
    coefficients(op, n, y, row, stats, a, b)
    m, zero = n * op.inputs, np.float32(0)
    for p in range(op.height * op.width):
        v, o = cut(y, p * m, (p + 1) * m), cut(out, p * m, (p + 1) * m)
        if op.residual >= 0:
            r = cut(residual, p * m, (p + 1) * m)
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


@part
def pooled(op, n, y, row, stats, a, b, out, mask):
    """The largest relu(y * a + b) of each window. `mask` keeps which tap it was, -1 where relu has cut."""
    coefficients(op, n, y, row, stats, a, b)
    high, wide = out_size(op)
    m, zero = n * op.inputs, np.float32(0)
    for at in range(high * wide):
        o, g = cut(out, at * m, (at + 1) * m), cut(mask, at * m, (at + 1) * m)
        o[:] = np.float32(-np.inf)
        g[:] = np.float32(-1)
        for tap in range(op.kernel_h * op.kernel_w):
            h = at // wide * op.stride_h + tap // op.kernel_w - op.pad_h
            w = at % wide * op.stride_w + tap % op.kernel_w - op.pad_w
            if h < 0 or h >= op.height or w < 0 or w >= op.width:
                continue
            v = cut(y, (h * op.width + w) * m, (h * op.width + w + 1) * m)
            mark = np.float32(tap)
            for j in range(m):
                z = v[j] * a[j] + b[j]
                more = (z > o[j]) | (z != z)  # what is not a number stays, as in torch
                o[j] = z if more else o[j]
                g[j] = mark if more else g[j]
        if op.relu:
            for j in range(m):
                below = o[j] <= zero
                o[j] = zero if below else o[j]
                g[j] = np.float32(-1) if below else g[j]


@part
def unpool(op, n, d, mask, gradient, sums, out):
    """Gradients go back to where the largest numbers came from. A bias gets its own here, of the smaller
    maps."""
    high, wide = out_size(op)
    m, zero = n * op.inputs, np.float32(0)
    out[:] = zero
    sums[:] = zero
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
        if op.affine == BIAS:
            for j in range(m):
                sums[j] += q[j] if g[j] >= zero else zero
    if op.affine == BIAS:
        by_channel(n, op.inputs, sums, cut(gradient, op.bias, op.bias + op.inputs))


@part
def by_channel(n, channels, sums, result):
    """Sum [example, channel] over the examples."""
    result[:] = np.float32(0)
    for i in range(n):
        s = cut(sums, i * channels, (i + 1) * channels)
        for c in range(channels):
            result[c] += s[c]


@part
def masked(op, n, d, out, gradient, sums):
    """Back through relu and bias, in place: d is then the gradient of what went in, and of the residual."""
    m, zero = n * op.inputs, np.float32(0)
    sums[:] = zero
    for p in range(op.height * op.width):
        q = cut(d, p * m, (p + 1) * m)
        if op.relu:
            o = cut(out, p * m, (p + 1) * m)
            for j in range(m):
                q[j] = zero if o[j] <= zero else q[j]
        if op.affine == BIAS:
            for j in range(m):
                sums[j] += q[j]
    if op.affine == BIAS:
        by_channel(n, op.inputs, sums, cut(gradient, op.bias, op.bias + op.inputs))


@part
def norm_back(op, n, d, forward, y, row, gradient, stats, a, b, e, out):
    """Back through relu and a group norm. d is masked in place, and is then the residual's gradient; `out`
    is y's."""
    positions, channels = op.height * op.width, op.inputs
    m, group, zero = n * channels, channels // op.groups, np.float32(0)
    for i in range(n * op.groups):
        e[i * group : (i + 1) * group] = stats[2 * i]
    a[:] = zero
    b[:] = zero
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
        gradient[op.weight : op.weight + channels] = zero
        gradient[op.bias : op.bias + channels] = zero
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
            a[at : at + group] = rate
        # rate * (gamma * d - s - (y - mean) * rate * q)
        slope = -rate * rate * q
        b[at : at + group] = slope
        e[at : at + group] = -rate * s - mean * slope
    for p in range(positions):
        v, q, o = cut(y, p * m, (p + 1) * m), cut(d, p * m, (p + 1) * m), cut(out, p * m, (p + 1) * m)
        for j in range(m):
            o[j] = q[j] * a[j] + (v[j] * b[j] + e[j])


@part
def mean(op, n, x, out):
    """Means of windows; padding counts as zeros."""
    high, wide = out_size(op)
    m, share = n * op.inputs, np.float32(1.0 / (op.kernel_h * op.kernel_w))
    for at in range(high * wide):
        o = cut(out, at * m, (at + 1) * m)
        o[:] = np.float32(0)
        for tap in range(op.kernel_h * op.kernel_w):
            h = at // wide * op.stride_h + tap // op.kernel_w - op.pad_h
            w = at % wide * op.stride_w + tap % op.kernel_w - op.pad_w
            if 0 <= h < op.height and 0 <= w < op.width:
                v = cut(x, (h * op.width + w) * m, (h * op.width + w + 1) * m)
                for j in range(m):
                    o[j] += v[j]
        for j in range(m):
            o[j] *= share


@part
def mean_back(op, n, d, out):
    high, wide = out_size(op)
    m, share = n * op.inputs, np.float32(1.0 / (op.kernel_h * op.kernel_w))
    if not op.adds:
        out[:] = np.float32(0)
    for at in range(high * wide):
        q = cut(d, at * m, (at + 1) * m)
        for tap in range(op.kernel_h * op.kernel_w):
            h = at // wide * op.stride_h + tap // op.kernel_w - op.pad_h
            w = at % wide * op.stride_w + tap % op.kernel_w - op.pad_w
            if 0 <= h < op.height and 0 <= w < op.width:
                o = cut(out, (h * op.width + w) * m, (h * op.width + w + 1) * m)
                for j in range(m):
                    o[j] += q[j] * share


@part
def flatten(op, n, x, out):
    """[position, example, channel] -> [example, channel, position], or of a text [example, position,
    channel]; or back."""
    positions, channels = op.height * op.width, op.inputs
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


@part
def drop(op, x, seed, mask, out):
    """Zero some numbers and scale the others up, by a stream of random bits of its own."""
    state, scale, zero = seed, np.float32(1) / (np.float32(1) - op.number), np.float32(0)
    limit = np.uint64(np.float64(op.number) * 4294967296.0)
    for j in range(len(x)):
        state, bits = splitmix(state)
        mask[j] = zero if bits >> np.uint64(32) < limit else scale
        out[j] = x[j] * mask[j]


@part
def embed(op, n, x, row, out):
    channels = op.outputs
    for at in range(op.height * n):
        token = np.int64(x[at])
        for c in range(channels):
            out[at * channels + c] = row[op.weight + token * channels + c]


@part
def embed_back(op, n, x, d, gradient):
    channels = op.outputs
    table = cut(gradient, op.weight, op.weight + op.groups * channels)
    table[:] = np.float32(0)
    for at in range(op.height * n):
        token = np.int64(x[at])
        q = cut(d, at * channels, (at + 1) * channels)
        to = cut(table, token * channels, (token + 1) * channels)
        for c in range(channels):
            to[c] += q[c]


@part
def softmax_loss(n, classes, logits, labels, offset, out):
    """The mean cross entropy; `out` is its gradient by the logits."""
    loss, share = 0.0, np.float32(1.0 / n)
    for i in range(n):
        v, o = cut(logits, i * classes, (i + 1) * classes), cut(out, i * classes, (i + 1) * classes)
        for c in range(classes):
            o[c] = v[c]
        if len(offset):
            for c in range(classes):
                o[c] += offset[c]
        top = o[0]
        for c in range(1, classes):
            top = max(top, o[c])
        own = o[labels[i]]
        s = np.float32(0)
        for c in range(classes):
            o[c] = np.exp(o[c] - top)
            s += o[c]
        loss += np.log(s) + top - own
        rate = share / s
        for c in range(classes):
            o[c] *= rate
        o[labels[i]] -= share
    return loss / n


@part
def interpret(table, arena, row, gradient, n, labels, offset, seed):
    """Run the operations for a batch of n examples that has been loaded. The mean loss, if the table
    computes it."""
    loss = 0.0
    memory, weights, gradients = arena.ctypes.data, row.ctypes.data, gradient.ctypes.data
    for number in range(len(table)):
        op = table[number]
        positions, channels = op.height * op.width, op.inputs
        m = n * channels
        size = positions * m
        scratch = op.scratch
        if op.tiled and op.kind == CONV_WEIGHT:
            outer(
                op,
                n,
                cut(arena, op.x, len(arena)),
                cut(arena, op.d, len(arena)),
                cut(gradient, op.weight, len(gradient)),
            )
        elif op.tiled:
            back = op.kind == CONV_INPUT
            source = cut(arena, op.d if back else op.x, len(arena))
            matrices = cut(row, op.weight, len(row))
            if back:
                turned = cut(arena, scratch, len(arena))
                turn(op, matrices, turned)
                matrices = turned
            gather(op, back, n, source, matrices, cut(arena, op.out if back else op.y, len(arena)))
        elif LINES <= op.kind <= LINEAR_INPUT:  # a product: of inputs, weights or their gradient, and outputs
            forward, back = op.kind in FORWARD, op.kind in BACK
            left = memory + FLOAT * (op.out if back else op.x)
            middle = (weights if forward or back else gradients) + FLOAT * op.weight
            right = memory + FLOAT * (op.y if forward else op.d)
            if op.kind <= LINES_WEIGHT:
                convolve_lines(op, n, left, middle, right)
            elif op.kind <= CONV_INPUT:
                convolve(op, n, left, middle, right)
            else:
                linear(op, positions * n, left, middle, right)
        elif op.kind == EPILOGUE or op.kind == POOLED:
            y, out = cut(arena, op.y, op.y + size), cut(arena, op.out, op.out + size)
            stats = cut(arena, op.stats, op.stats + 2 * n * op.groups)
            a, b = cut(arena, scratch, scratch + m), cut(arena, scratch + m, scratch + 2 * m)
            if op.kind == EPILOGUE:
                epilogue(op, n, y, row, stats, a, b, cut(arena, op.residual, op.residual + size), out)
            else:
                out, mask = cut(arena, op.out, len(arena)), cut(arena, op.mask, len(arena))
                pooled(op, n, y, row, stats, a, b, out, mask)
        elif op.kind == EPILOGUE_BACK:
            d, result = cut(arena, op.d, op.d + size), cut(arena, op.x, op.x + size)
            a, b = cut(arena, scratch, scratch + m), cut(arena, scratch + m, scratch + 2 * m)
            if op.affine == NORM:
                stats, e = (
                    cut(arena, op.stats, op.stats + 2 * n * op.groups),
                    cut(arena, scratch + 2 * m, scratch + 3 * m),
                )
                y, out = cut(arena, op.y, op.y + size), cut(arena, op.out, op.out + size)
                norm_back(op, n, d, result, y, row, gradient, stats, a, b, e, out)
            else:
                masked(op, n, d, result, gradient, a)
        elif op.kind == UNPOOL:
            unpool(
                op,
                n,
                cut(arena, op.d, len(arena)),
                cut(arena, op.mask, len(arena)),
                gradient,
                cut(arena, scratch, scratch + m),
                cut(arena, op.out, op.out + size),
            )
        elif op.kind == MEAN:
            mean(op, n, cut(arena, op.x, op.x + size), cut(arena, op.out, len(arena)))
        elif op.kind == MEAN_BACK:
            mean_back(op, n, cut(arena, op.d, len(arena)), cut(arena, op.out, op.out + size))
        elif op.kind == FLATTEN:
            flatten(op, n, cut(arena, op.x, op.x + size), cut(arena, op.out, op.out + size))
        elif op.kind == FLATTEN_BACK:
            flatten(op, n, cut(arena, op.d, op.d + size), cut(arena, op.out, op.out + size))
        elif op.kind == DROP:
            _, own = splitmix(seed + np.uint64(number))
            drop(
                op,
                cut(arena, op.x, op.x + size),
                own,
                cut(arena, op.mask, op.mask + size),
                cut(arena, op.out, op.out + size),
            )
        elif op.kind == DROP_BACK:
            d, mask, out = (
                cut(arena, op.d, op.d + size),
                cut(arena, op.mask, op.mask + size),
                cut(arena, op.out, op.out + size),
            )
            for j in range(size):
                out[j] = d[j] * mask[j]
        elif op.kind == EMBED:
            embed(op, n, cut(arena, op.x, len(arena)), row, cut(arena, op.out, len(arena)))
        elif op.kind == EMBED_BACK:
            embed_back(op, n, cut(arena, op.x, len(arena)), cut(arena, op.d, len(arena)), gradient)
        elif op.kind == LOSS:
            loss = softmax_loss(
                n, channels, cut(arena, op.x, op.x + m), labels, offset, cut(arena, op.out, op.out + m)
            )
        elif op.kind == ZERO:
            arena[op.out : op.out + size] = np.float32(0)
        else:  # ADD, COPY
            d, out = cut(arena, op.d, op.d + size), cut(arena, op.out, op.out + size)
            if op.kind == ADD:
                for j in range(size):
                    out[j] += d[j]
            else:
                for j in range(size):
                    out[j] = d[j]
    return loss
