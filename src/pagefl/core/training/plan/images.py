"""The first convolution of images, in tiles. Examples lie padded as [example, line, column, channel], so that
all numbers that a line of the kernel meets lie side by side. Compiled by numba.
"""

import numpy as np

from ..simd import cut
from .blas import part
from .kept import operation
from .tiles import NEAR, shape_as, tile
from .windows import fill, out_size


@part
def lengths(op):
    """Of a padded line, and of a padded example."""
    line = (op.width + 2 * op.pad_w) * op.inputs
    return line, (op.height + 2 * op.pad_h) * line


@part
def enter_padded(entry, x, who, centre, scale, arena):
    channels = entry.inputs
    line, size = lengths(entry)
    numbers = np.empty(entry.width, np.float32)
    for i in range(len(who)):
        own = cut(arena, entry.x + i * size, entry.x + (i + 1) * size)
        fill(own, np.float32(0))
        for c in range(channels):
            a, b = centre[c], scale[c]
            for h in range(entry.height):
                pixels = cut(x[who[i], c], h * entry.width, (h + 1) * entry.width)
                to = cut(own, (h + entry.pad_h) * line + entry.pad_w * channels + c, len(own))
                for w in range(entry.width):
                    numbers[w] = (np.float32(pixels[w]) - a) * b
                for w in range(entry.width):
                    to[w * channels] = numbers[w]


@operation
def convolve_images(op, work):
    """A tile is several columns of outputs of one example."""
    n, arena = work.n, work.arena
    x, y = cut(arena, op.x, len(arena)), cut(arena, op.y, len(arena))
    weight = cut(work.row, op.weight, len(work.row))
    line, size = lengths(op)
    high, wide = out_size(op)
    co, count, step = op.outputs, op.kernel_w * op.inputs, op.stride_w * op.inputs
    width, rows = shape_as(co)
    taps = np.empty((op.kernel_h, 2), np.int64)
    for h in range(high):
        for channel in range(0, co, width):
            for kh in range(op.kernel_h):
                taps[kh, 0], taps[kh, 1] = (h * op.stride_h + kh) * line, kh * count * co + channel
            for w in range(0, wide, rows):
                for i in range(n):
                    at, to = i * size + w * step, ((h * wide + w) * n + i) * co + channel
                    last = wide - w - 1
                    tile(width, x, at, step, 1, weight, co, taps, op.kernel_h, count, y, to, n * co, last, 0)


@operation
def images_weight(op, work):
    """The gradient of the weight, a line of a few examples at a time: what these need stays in the cache."""
    n, arena = work.n, work.arena
    x, d = cut(arena, op.x, len(arena)), cut(arena, op.d, len(arena))
    slope = cut(work.gradient, op.weight, len(work.gradient))
    line, size = lengths(op)
    high, wide = out_size(op)
    co, count, step = op.outputs, op.kernel_w * op.inputs, op.stride_w * op.inputs
    width, rows = shape_as(co)
    some = max(1, NEAR // (line + wide * co))
    begins = np.empty((some, 2), np.int64)
    for h in range(high):
        for first in range(0, n, some):
            met, adds = min(some, n - first), h + first
            for channel in range(0, co, width):
                for i in range(met):
                    begins[i, 0] = (first + i) * size + h * op.stride_h * line
                    begins[i, 1] = (h * wide * n + first + i) * co + channel
                for kh in range(op.kernel_h):
                    for r in range(0, count, rows):
                        at, to, last = kh * line + r, (kh * count + r) * co + channel, count - r - 1
                        tile(width, x, at, 1, step, d, n * co, begins, met, wide, slope, to, co, last, adds)
