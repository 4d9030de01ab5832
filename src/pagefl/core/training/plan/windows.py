"""Where the windows of convolutions and poolings lie, and how memory is filled. Compiled by numba."""

from .blas import part


@part
def out_size(op):
    height = (op.height + 2 * op.pad_h - op.kernel_h) // op.stride_h + 1
    width = (op.width + 2 * op.pad_w - op.kernel_w) // op.stride_w + 1
    return height, width


@part
def reach(size, tap, stride, pad, outs):
    """The first output that this tap meets the maps at, and the one after the last."""
    first = max(0, (pad - tap + stride - 1) // stride)
    return first, min(outs, (size - 1 + pad - tap) // stride + 1)


@part
def fill(values, number):
    for j in range(len(values)):
        values[j] = number


@part
def copy(values, to):
    for j in range(len(to)):
        to[j] = values[j]
