"""The kinds of operations of a plan, what a table says about each, and what all of them work on."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

(
    ZERO, ADD, COPY, LINES, LINES_WEIGHT, IMAGES, IMAGES_WEIGHT, CONV, CONV_WEIGHT, CONV_INPUT,
    TILED, TILED_WEIGHT, TILED_INPUT, LINEAR, LINEAR_WEIGHT, LINEAR_INPUT, MOMENTS, SHIFT, EPILOGUE, POOLED,
    NORM_BACK, EPILOGUE_BACK, UNPOOL, MEAN, MEAN_BACK, FLATTEN, FLATTEN_BACK, DROP, DROP_BACK, EMBED,
    EMBED_BACK, LOSS,
) = range(32)  # fmt: skip

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
        for name in ("kind", *SIZES, "groups", "relu", "adds", "weight", "bias", *SLOTS)
    ]
    + [("number", np.float32)]
)  # fmt: skip
FLOAT = 4  # bytes


class Work(NamedTuple):
    """A batch of n examples, which has been loaded into the arena."""

    n: int
    arena: npt.NDArray[np.float32]
    row: npt.NDArray[np.float32]
    gradient: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    offset: npt.NDArray[np.float32]  # of the logits; empty: none
    seed: np.uint64  # an operation's own
