"""The numbers of NumPy's generators on Philox, drawn by compiled code: the same bits, for many streams.

Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011 (Philox4x64-10); normal numbers by
Marsaglia and Tsang, The Ziggurat Method, 2000, with NumPy's tables. A stream is its two keys, some words that
are drawn ahead, and a place among these.
"""

import math

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numba.np.random import _constants as tables

BLOCKS = 64  # of four words, drawn ahead together: they do not wait for each other
KI, FI = tables.ki_double, tables.fi_double
SIGNED = np.concatenate([tables.wi_double, -tables.wi_double])  # by nine bits: a branch would be a guess
TAIL, INVERSE_OF_TAIL = tables.ziggurat_nor_r, tables.ziggurat_nor_inv_r
U = np.uint64
LOW = U(0xFFFFFFFF)


@njit(cache=True)
def _scrambled(value, by, times):  # type: ignore[no-untyped-def]  # numba infers
    """A step of NumPy's SeedSequence, and the next multiplier."""
    value = (value ^ by) & LOW
    by = (by * times) & LOW
    value = (value * by) & LOW
    return value ^ (value >> U(16)), by


@njit(cache=True)
def keys(seeds):  # type: ignore[no-untyped-def]  # numba infers
    """The two keys of the stream `np.random.Philox(seed)` for each seed of 64 bits, [seeds, 2]."""
    found = np.empty((len(seeds), 2), np.uint64)
    pool = np.empty(4, np.uint64)
    for i in range(len(seeds)):
        by = U(0x43B0D7E5)
        for j, part in enumerate((seeds[i] & LOW, seeds[i] >> U(32), U(0), U(0))):
            pool[j], by = _scrambled(part, by, U(0x931E8875))
        for source in range(4):
            for j in range(4):
                if j != source:
                    other, by = _scrambled(pool[source], by, U(0x931E8875))
                    mixed = (U(0xCA01F9DD) * pool[j] - U(0x4973F715) * other) & LOW
                    pool[j] = mixed ^ (mixed >> U(16))
        by = U(0x8B51F9DD)
        for j in range(2):
            low, by = _scrambled(pool[2 * j], by, U(0x58F38DED))
            high, by = _scrambled(pool[2 * j + 1], by, U(0x58F38DED))
            found[i, j] = low | (high << U(32))
    return found


@intrinsic
def _high(typing, a, b):  # type: ignore[no-untyped-def]
    """The upper half of a product of two words."""

    def made(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        twice = ir.IntType(128)
        a, b = (builder.zext(value, twice) for value in arguments)
        product = builder.lshr(builder.mul(a, b), ir.Constant(twice, 64))
        return builder.trunc(product, ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), made


@njit(cache=True)
def begun():  # type: ignore[no-untyped-def]  # numba infers
    """Room for the words of a stream. The place behind the last one is where every stream begins."""
    return np.zeros(4 * BLOCKS + 1, np.uint64), 4 * BLOCKS


@njit(cache=True)
def _draw_ahead(key, words):  # type: ignore[no-untyped-def]  # numba infers
    """The last word counts the blocks that were drawn."""
    count = words[4 * BLOCKS]
    for block in range(BLOCKS):
        a, b, c, d = count + U(block + 1), U(0), U(0), U(0)
        left, right = key[0], key[1]
        for _ in range(10):
            above, below = _high(U(0xD2E7470EE14C6C93), a), _high(U(0xCA5A826395121157), c)
            a, b, c, d = (
                below ^ b ^ left,
                U(0xCA5A826395121157) * c,
                above ^ d ^ right,
                U(0xD2E7470EE14C6C93) * a,
            )
            left += U(0x9E3779B97F4A7C15)
            right += U(0xBB67AE8584CAA73B)
        words[4 * block], words[4 * block + 1], words[4 * block + 2], words[4 * block + 3] = a, b, c, d
    words[4 * BLOCKS] = count + U(BLOCKS)


@njit(cache=True)
def word(key, words, at):  # type: ignore[no-untyped-def]  # numba infers
    """64 random bits, and the next place."""
    if at == 4 * BLOCKS:
        _draw_ahead(key, words)
        at = 0
    return words[at], at + 1


@njit(cache=True)
def uniform(key, words, at):  # type: ignore[no-untyped-def]  # numba infers
    bits, at = word(key, words, at)
    return np.float64(bits >> U(11)) * 2.0**-53, at


@njit(cache=True)
def normals(key, words, at, out):  # type: ignore[no-untyped-def]  # numba infers
    """As `Generator.standard_normal(len(out))`. Returns the next place."""
    i = 0
    while i < len(out):
        if at == 4 * BLOCKS:
            _draw_ahead(key, words)
            at = 0
        bits = words[at]
        at += 1
        layer, size = bits & U(0xFF), (bits >> U(9)) & U(0x000FFFFFFFFFFFFF)
        found = np.float64(np.int64(size)) * SIGNED[bits & U(0x1FF)]
        taken = size < KI[layer]
        if not taken:  # once in a hundred
            found, taken, at = _at_an_edge(key, words, at, found, layer, size)
        out[i] = found
        i += np.int64(taken)
    return at


@njit(cache=True)
def _at_an_edge(key, words, at, found, layer, size):  # type: ignore[no-untyped-def]  # numba infers
    """The number, from a layer's edge or from the tail, and whether it is taken."""
    if layer:
        chance, at = uniform(key, words, at)
        height = (FI[layer - U(1)] - FI[layer]) * chance + FI[layer]
        return found, height < math.exp(-0.5 * found * found), at
    while True:
        one, at = uniform(key, words, at)
        two, at = uniform(key, words, at)
        beyond, height = -INVERSE_OF_TAIL * math.log1p(-one), -math.log1p(-two)
        if height + height > beyond * beyond:
            found = TAIL + beyond
            return (-found if (size >> U(8)) & U(1) else found), True, at


@njit(cache=True)
def permute(key, order):  # type: ignore[no-untyped-def]  # numba infers
    """As a new stream's `Generator.permutation(len(order))`, of fewer than 2**32."""
    words, at = begun()
    half, bits, mask = False, U(0), U(1)
    for i in range(len(order)):
        order[i] = i
        mask |= U(i)
    for i in range(len(order) - 1, 0, -1):
        while mask >> U(1) >= U(i):
            mask >>= U(1)
        j = U(i + 1)
        while j > U(i):
            bits = bits >> U(32)
            if not half:
                bits, at = word(key, words, at)
            half = not half
            j = bits & mask
        order[i], order[j] = order[j], order[i]
