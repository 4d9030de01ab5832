"""Vectors of eight floats as values inside numba's functions, kept in registers and always added in the
same order.

Left to itself the compiler guards every short loop against arrays that overlap, and picks its own order of
sums; with these a loop costs what its arithmetic costs, and its result is the same on every machine that
multiplies and adds in one.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic, models, register_model
from numba.np.arrayobj import populate_array

LANES = 8
# What numba compiles for; its own settings may leave features of the machine out.
_features = get_host_cpu_features() if config.CPU_FEATURES is None else config.CPU_FEATURES
AVX512 = "+avx512f" in _features.split(",")
_VECTOR = ir.VectorType(ir.FloatType(), LANES)
_WHOLE = ir.VectorType(ir.IntType(32), LANES)


class Lanes(types.Type):
    def __init__(self):
        super().__init__(name="Lanes")


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, _VECTOR)


lanes = Lanes()


def _address(context, builder, kind, array, at):
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), _VECTOR.as_pointer())


def of_one(builder, value, kind=_VECTOR):
    """A vector of the same number throughout."""
    nothing, whole = ir.Constant(kind, ir.Undefined), ir.VectorType(ir.IntType(32), kind.count)
    one = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, nothing, ir.Constant(whole, [0] * kind.count))


def _number(value):
    return ir.Constant(_VECTOR, [value] * LANES)


def _call(builder, name, *values):
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * len(values))
    return builder.call(
        cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{LANES}f32"), values
    )


def _greater(builder, a, b):
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _fold(builder, value, pair):
    """Halves on halves, down to one number: an order that does not depend on the machine."""
    for width in (4, 2, 1):
        turned = [lane ^ width for lane in range(LANES)]
        value = pair(value, builder.shuffle_vector(value, value, ir.Constant(_WHOLE, turned)))
    return builder.extract_element(value, ir.Constant(ir.IntType(32), 0))


@intrinsic
def load(typing, array, at):
    """Eight numbers of a flat array."""

    def code(context, builder, signature, args):
        return builder.load(_address(context, builder, signature.args[0], *args), align=4)

    return lanes(array, types.intp), code


@intrinsic
def cut(typing, array, start, end):
    """A flat array's numbers from start to end, which must lie in it.

    Of a slice numba compiles much more: steps, and ends that are negative or beyond the array. The address is
    computed as a number, so that the compiler takes two cuts of one array for two arrays: it then checks at
    run time that they do not overlap, instead of giving up on vectors.
    """

    def code(context, builder, signature, args):
        kind, (whole, start, end) = signature.return_type, args
        make = context.make_array(kind)
        old, new = make(context, builder, whole), make(context, builder)
        count = builder.sub(end, start)
        at = builder.add(builder.ptrtoint(old.data, count.type), builder.mul(start, old.itemsize))
        step = cgutils.unpack_tuple(builder, old.strides)[0]
        populate_array(
            new,
            data=builder.inttoptr(at, old.data.type),
            shape=[count],
            strides=[step],
            itemsize=old.itemsize,
            meminfo=None,
        )
        return new._getvalue()

    return array(array, types.intp, types.intp), code


@intrinsic
def store(typing, array, at, value):
    def code(context, builder, signature, args):
        builder.store(args[2], _address(context, builder, signature.args[0], *args[:2]), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), code


@intrinsic
def stream(typing, array, at, value):
    """Store past the cache. The address must be a multiple of a vector's size. Others see it after
    `settle`."""

    def code(context, builder, signature, args):
        place = _address(context, builder, signature.args[0], *args[:2])
        stored = builder.store(args[2], place, align=4 * LANES)
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), code


@intrinsic
def settle(typing):
    """Wait until everything is stored."""

    def code(context, builder, signature, args):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), code


@intrinsic
def spread(typing, array, at):
    """One number of a flat array, eight times."""

    def code(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return of_one(builder, builder.load(builder.gep(data, [args[1]])))

    return lanes(array, types.intp), code


@intrinsic
def same(typing, number):
    """A number, eight times."""
    return lanes(types.float32), lambda context, builder, signature, args: of_one(builder, args[0])


@intrinsic
def times_plus(typing, a, b, c):
    """a * b + c"""
    return lanes(lanes, lanes, lanes), lambda context, builder, signature, args: _call(
        builder, "fmuladd", *args
    )


@intrinsic
def times(typing, a, b):
    return lanes(lanes, lanes), lambda context, builder, signature, args: builder.fmul(*args)


@intrinsic
def plus(typing, a, b):
    return lanes(lanes, lanes), lambda context, builder, signature, args: builder.fadd(*args)


@intrinsic
def minus(typing, a, b):
    return lanes(lanes, lanes), lambda context, builder, signature, args: builder.fsub(*args)


@intrinsic
def greater(typing, a, b):
    """Lane by lane."""
    return lanes(lanes, lanes), lambda context, builder, signature, args: _greater(builder, *args)


@intrinsic
def if_greater(typing, a, b, this, other):
    """Lane by lane: this where a > b, and else the other."""

    def code(context, builder, signature, args):
        return builder.select(builder.fcmp_ordered(">", *args[:2]), *args[2:])

    return lanes(lanes, lanes, lanes, lanes), code


@intrinsic
def total(typing, a):
    """Of all lanes."""
    return types.float32(lanes), lambda context, builder, signature, args: _fold(
        builder, args[0], builder.fadd
    )


@intrinsic
def greatest(typing, a):
    """Of all lanes."""

    def code(context, builder, signature, args):
        return _fold(builder, args[0], lambda one, other: _greater(builder, one, other))

    return types.float32(lanes), code


@intrinsic
def exponential(typing, a):
    """Of numbers up to 0: 2^whole * polynomial(fraction). What is below 2^-126 is 0, so that no number is
    denormal."""

    def code(context, builder, signature, args):
        t = builder.fmul(args[0], _number(1.4426950408889634))
        t = builder.select(builder.fcmp_ordered("<", t, _number(-127.0)), _number(-127.0), t)
        whole = _call(builder, "floor", t)
        fraction = builder.fsub(t, whole)
        value = _number(1.535336188319500e-4)
        for factor in (
            1.339887440266574e-3,
            9.618437357674640e-3,
            5.550332471162809e-2,
            2.402264791363012e-1,
            6.931472028550421e-1,
            1.0,
        ):
            value = _call(builder, "fmuladd", value, fraction, _number(factor))
        power = builder.add(builder.fptosi(whole, _WHOLE), ir.Constant(_WHOLE, [127] * LANES))
        scale = builder.bitcast(builder.shl(power, ir.Constant(_WHOLE, [23] * LANES)), _VECTOR)
        return builder.fmul(value, scale)

    return lanes(lanes), code
