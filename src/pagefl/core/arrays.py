"""The arrays of numbers that describe clients: an entry for each of them."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # seconds, which the console does not need
    from torch import Tensor

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def finite(rows: "Tensor") -> "Tensor":
    """Of each row, whether all of its numbers are finite.

    A finite sum has finite parts, and takes one pass. Only if a sum is not finite, every number is looked at.
    """
    found = rows.sum(1).isfinite()
    return found if bool(found.all()) else rows.isfinite().all(1)
