"""How large an upload may be, by what is usual."""

from collections.abc import Collection

import numpy as np
import torch
from torch import Tensor

REMEMBERED = 5  # rounds
MAJORITY = 3  # of fewer replies the median is one client's word


class UsualNorm:
    """The median norm of the round's replies, and of the last rounds' accepted ones: the larger of the two.

    The round's own median counts from three replies on, so that one of two clients cannot decide that the
    other is an outlier. The past keeps small uploads of many from turning others into outliers.
    """

    def __init__(self) -> None:
        self.past = np.full(REMEMBERED, np.nan)

    def of(self, norms: Collection[float]) -> float | None:
        """None if nobody can tell yet."""
        finite = [norm for norm in norms if np.isfinite(norm)]
        known = [] if np.isnan(self.past).all() else [float(np.nanmedian(self.past))]
        if len(finite) >= MAJORITY:
            known.append(float(np.median(finite)))
        return max(known, default=0.0) or None

    def note(self, accepted: Collection[float]) -> None:
        if accepted:
            self.past = np.array([float(np.median(list(accepted))), *self.past[:-1]])

    @property
    def tensor(self) -> Tensor:
        return torch.from_numpy(self.past)

    def load(self, tensor: Tensor) -> None:
        self.past = tensor.numpy().copy()
