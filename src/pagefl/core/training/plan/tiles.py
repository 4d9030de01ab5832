"""Convolutions of few channels, without sgemm: its products have an inner size of a few channels, at which it
spends as much time on its operands as on its sums.

Here all taps of a tile of outputs are summed in registers: four or eight rows of 16, 24 or 32 channels.
Compiled by numba. Each output is summed in one order, tap by tap and channel by channel, whatever the size of
its tile: the bits do not depend on it.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..simd import AVX512, cut, of_one
from .blas import part
from .kept import operation
from .kinds import TILED_INPUT
from .windows import out_size, reach

MOST = 32  # channels; from there on sgemm is as fast
# A tile: its vectors, its rows, and for each number of channels where the vectors begin. Two vectors of 16
# cover 24 channels by computing eight of them twice.
LANES, ROWS = (16, 8) if AVX512 else (8, 4)
PARTS = {32: (0, 16), 24: (0, 8), 16: (0,)} if AVX512 else {24: (0, 8, 16), 16: (0, 8)}
WIDTHS = tuple(PARTS)
_VECTOR, _WHOLE = ir.VectorType(ir.FloatType(), LANES), ir.IntType(64)


def fits(inputs: int, outputs: int) -> bool:
    """Whether a convolution of so many channels is tiled."""
    return all(c <= MOST and (c % 16 == 0 or c % 24 == 0) for c in (inputs, outputs))


@part
def wide_as(channels):
    """How many channels are summed at a time."""
    for width in WIDTHS:
        if channels % width == 0:
            return width
    return 0


@intrinsic
def tile(typing, width, x, at, x_row, x_step, weight, w_step, taps, met, count, y, to, y_row, last, adds):
    """y[ROWS, width] = the sum over `met` taps of x[ROWS, count] weight[count, width]; `adds`: += instead.

    `at` and `to`: where the first rows of x and y begin; `x_row` and `y_row`: from one row to the next;
    `x_step` and `w_step`: from one summand to the next. `taps`: [met, 2], what a tap adds to where x begins,
    and where its weight does. Rows after the last one are computed as the last one.
    """
    whole = types.intp
    signature = types.void(
        whole, x, whole, whole, whole, weight, whole, taps, whole, whole, y, whole, whole, whole, whole
    )

    def code(context, builder, signature, args):
        places = [_data(context, builder, *pair) for pair in zip(signature.args, args, strict=True)]
        for width, parts in PARTS.items():
            with builder.if_then(builder.icmp_signed("==", places[0], _WHOLE(width))):
                _tile(builder, parts, *places[1:])
        return context.get_dummy_value()

    return signature, code


def _data(context, builder, kind, value):
    array = isinstance(kind, types.Array)
    return context.make_array(kind)(context, builder, value).data if array else value


def _tile(builder, parts, x, at, x_row, x_step, weight, w_step, taps, met, count, y, to, y_row, last, adds):
    def vector(base, *steps):
        for step in steps:
            base = builder.gep(base, [step])
        return builder.bitcast(base, _VECTOR.as_pointer())

    rows = [builder.select(builder.icmp_signed("<", _WHOLE(r), last), _WHOLE(r), last) for r in range(ROWS)]
    of_x = [builder.add(at, builder.mul(row, x_row)) for row in rows]
    of_y = [vector(y, to, builder.mul(row, y_row), _WHOLE(part)) for row in rows for part in parts]
    sums = [cgutils.alloca_once(builder, _VECTOR) for _ in of_y]  # in registers, once it is optimised
    with builder.if_else(builder.icmp_signed("!=", adds, _WHOLE(0))) as (then, otherwise):
        with then:
            for own, place in zip(sums, of_y, strict=True):
                builder.store(builder.load(place, align=4), own)
        with otherwise:
            for own in sums:
                builder.store(ir.Constant(_VECTOR, [0.0] * LANES), own)
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    times_plus = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{LANES}f32")
    with cgutils.for_range(builder, met) as tap:
        pair = builder.gep(taps, [builder.mul(tap.index, _WHOLE(2))])
        begins = builder.gep(x, [builder.load(pair)])
        x_rows = [builder.gep(begins, [row]) for row in of_x]
        matrix = builder.gep(weight, [builder.load(builder.gep(pair, [_WHOLE(1)]))])
        with cgutils.for_range(builder, count) as one:
            line, step = builder.mul(one.index, w_step), builder.mul(one.index, x_step)
            factors = [builder.load(vector(matrix, line, _WHOLE(part)), align=4) for part in parts]
            for r, row in enumerate(x_rows):
                number = of_one(builder, builder.load(builder.gep(row, [step])), _VECTOR)
                for part, factor in enumerate(factors):
                    own = sums[r * len(parts) + part]
                    builder.store(builder.call(times_plus, [number, factor, builder.load(own)]), own)
    for own, place in zip(sums, of_y, strict=True):
        builder.store(builder.load(own), place, align=4)


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
def stretch(op, at, back):
    """From a position on, so many of its line meet the same taps, each in the neighbouring place."""
    if op.stride_w > 1:
        return 1
    _, wide = out_size(op)
    # the first position that meets every tap, and the one after the last
    first, end = op.pad_w, op.width + op.pad_w - op.kernel_w + 1
    if back:
        first, end = op.kernel_w - 1 - op.pad_w, min(wide - op.pad_w, op.width)
    w = at % (op.width if back else wide)
    return end - w if first <= w < end else 1


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
    width, at = wide_as(co), 0
    taps = np.empty((op.kernel_h * op.kernel_w, 2), np.int64)
    while at < positions:
        met, run = meets(op, at, back, n, taps), stretch(op, at, back)
        for channel in range(0, co, width):
            for row in range(0, run * n, ROWS):
                to, last = (at * n + row) * co + channel, run * n - row - 1
                tile(width, x, row * ci, ci, 1, weight, co, taps, met, ci, y, to, co, last, op.adds)
            for t in range(met):
                taps[t, 1] += width
        at += run


@operation
def outer(op, work):
    """The gradient of the weight, tap by tap and line by line: what a line needs stays in the cache."""
    n, arena = work.n, work.arena
    x, d = cut(arena, op.x, len(arena)), cut(arena, op.d, len(arena))
    gradient = cut(work.gradient, op.weight, len(work.gradient))
    ci, co = op.inputs, op.outputs
    high, wide = out_size(op)
    width, begins = wide_as(co), np.empty((1, 2), np.int64)
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
                for i in range(0, ci, ROWS):
                    for o in range(0, co, width):
                        begins[0, 0], begins[0, 1] = at, to + o
                        y, last = own + i * co + o, ROWS - 1
                        tile(width, x, i, 1, ci, d, co, begins, 1, count, gradient, y, co, last, 1)
