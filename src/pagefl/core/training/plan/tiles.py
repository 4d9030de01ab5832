"""Convolutions of few channels, without sgemm: its products have an inner size of a few channels, at which it
spends as much time on its operands as on its sums.

Here all taps of a tile of outputs are summed in registers: four or eight rows of 8 to 32 channels. Compiled
by numba. Each output is summed in one order, tap by tap and channel by channel, whatever the size of
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
NEAR = 6144  # numbers that stay in the cache while tiles read them again
# By channels, the shape of a tile: the lanes of its vectors, its rows, and where its vectors begin. Two
# vectors of 16 cover 24 channels by computing eight of them twice.
TILES = (
    {32: (16, 8, (0, 16)), 24: (16, 8, (0, 8)), 16: (16, 8, (0,)), 8: (8, 8, (0,))}
    if AVX512
    else {24: (8, 4, (0, 8, 16)), 16: (8, 4, (0, 8)), 8: (8, 8, (0,))}
)
SHAPES = tuple((width, rows) for width, (_, rows, _) in TILES.items())
_WHOLE = ir.IntType(64)


def fits(channels: int) -> bool:
    """Whether tiles compute so many channels, and are faster than sgemm."""
    return channels <= MOST and channels % 8 == 0


@part
def shape_as(channels):
    """How many channels, and rows of them, are summed at a time."""
    for width, rows in SHAPES:
        if channels % width == 0:
            return width, rows
    return 0, 0


@intrinsic
def tile(typing, width, x, at, x_row, x_step, weight, w_step, taps, met, count, y, to, y_row, last, adds):
    """y[rows, width] = the sum over `met` taps of x[rows, count] weight[count, width]; `adds`: += instead.

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
        for width, shape in TILES.items():
            with builder.if_then(builder.icmp_signed("==", places[0], _WHOLE(width))):
                _tile(builder, *shape, *places[1:])
        return context.get_dummy_value()

    return signature, code


def _data(context, builder, kind, value):
    array = isinstance(kind, types.Array)
    return context.make_array(kind)(context, builder, value).data if array else value


def _hidden(builder, number):
    """The same number, of which the compiler knows nothing: it would keep a pointer for each row and step,
    more than there are registers."""
    return builder.asm(ir.FunctionType(_WHOLE, [_WHOLE]), "", "=r,0", [number], side_effect=False)


def _tile(builder, lanes, rows, parts, *operands):
    x, at, x_row, x_step, weight, w_step, taps, met, count, y, to, y_row, last, adds = operands
    kind = ir.VectorType(ir.FloatType(), lanes)

    def vector(base, *steps):
        for step in steps:
            base = builder.gep(base, [step])
        return builder.bitcast(base, kind.as_pointer())

    numbers = [
        builder.select(builder.icmp_signed("<", _WHOLE(r), last), _WHOLE(r), last) for r in range(rows)
    ]
    of_x = [builder.add(at, builder.mul(row, x_row)) for row in numbers]
    of_y = [vector(y, to, builder.mul(row, y_row), _WHOLE(part)) for row in numbers for part in parts]
    sums = [cgutils.alloca_once(builder, kind) for _ in of_y]  # in registers, once it is optimised
    for own in sums:
        builder.store(ir.Constant(kind, [0.0] * lanes), own)
    signature = ir.FunctionType(kind, [kind] * 3)
    times_plus = cgutils.get_or_insert_function(builder.module, signature, f"llvm.fmuladd.v{lanes}f32")
    with cgutils.for_range(builder, met) as tap:
        pair = builder.gep(taps, [builder.mul(tap.index, _WHOLE(2))])
        begins = builder.gep(x, [builder.load(pair)])
        x_rows = [builder.gep(begins, [row]) for row in of_x]
        matrix = builder.gep(weight, [builder.load(builder.gep(pair, [_WHOLE(1)]))])
        with cgutils.for_range(builder, count) as one:
            line, step = builder.mul(one.index, w_step), _hidden(builder, builder.mul(one.index, x_step))
            factors = [builder.load(vector(matrix, line, _WHOLE(part)), align=4) for part in parts]
            for r, row in enumerate(x_rows):
                number = of_one(builder, builder.load(builder.gep(row, [step])), kind)
                for part, factor in enumerate(factors):
                    own = sums[r * len(parts) + part]
                    builder.store(builder.call(times_plus, [number, factor, builder.load(own)]), own)
    with builder.if_then(builder.icmp_signed("!=", adds, _WHOLE(0))):
        for own, place in zip(sums, of_y, strict=True):
            builder.store(builder.fadd(builder.load(place, align=4), builder.load(own)), own)
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
    (width, rows), at = shape_as(co), 0
    taps = np.empty((op.kernel_h * op.kernel_w, 2), np.int64)
    while at < positions:
        met, run = meets(op, at, back, n, taps), stretch(op, at, back)
        for channel in range(0, co, width):
            for row in range(0, run * n, rows):
                to, last = (at * n + row) * co + channel, run * n - row - 1
                tile(width, x, row * ci, ci, 1, weight, co, taps, met, ci, y, to, co, last, op.adds)
            for t in range(met):
                taps[t, 1] += width
        at += run


@operation
def outer(op, work):
    """The gradient of the weight, tap by tap, a few lines at a time: what these need stays in the cache."""
    n, arena = work.n, work.arena
    x, d = cut(arena, op.x, len(arena)), cut(arena, op.d, len(arena))
    gradient = cut(work.gradient, op.weight, len(work.gradient))
    ci, co = op.inputs, op.outputs
    high, wide = out_size(op)
    width, rows = shape_as(co)
    lines = max(1, NEAR // (wide * n * (ci + co)))
    begins = np.empty((lines * wide, 2), np.int64)
    for tap in range(op.kernel_h * op.kernel_w):
        kh, kw = tap // op.kernel_w, tap % op.kernel_w
        h0, h1 = reach(op.height, kh, op.stride_h, op.pad_h, high)
        w0, w1 = reach(op.width, kw, op.stride_w, op.pad_w, wide)
        if h1 <= h0 or w1 <= w0:
            continue
        runs, count = (1, (w1 - w0) * n) if op.stride_w == 1 else (w1 - w0, n)
        for start in range(h0, h1, lines):
            met = 0
            for h in range(start, min(start + lines, h1)):
                left = (h * op.stride_h + kh - op.pad_h) * op.width + kw - op.pad_w
                for w in range(w0, w0 + runs):
                    begins[met, 0] = (left + w * op.stride_w) * n * ci
                    begins[met, 1] = (h * wide + w) * n * co
                    met += 1
            for o in range(0, co, width):
                for i in range(0, ci, rows):
                    to, last, adds = (tap * ci + i) * co + o, ci - i - 1, start - h0
                    tile(width, x, i, 1, ci, d, co, begins, met, count, gradient, to, co, last, adds)
                for m in range(met):
                    begins[m, 1] += width
