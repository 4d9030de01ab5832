"""Clipping: the most that one client can add to a round's sums.

A client's upload is one vector, all arrays of it together. What is bounded is how far it leads from where the
client started (see `Algorithm.origin`).
"""

from collections.abc import Mapping
from math import exp

import numpy as np
import torch
from torch import Size, Tensor

from pagefl.core import sums
from pagefl.core.algorithm import State
from pagefl.core.errors import UserError
from pagefl.core.uploaded import Uploaded

AT_ONCE = 2**22  # numbers of uploads that are held twice at a time
STEP = 0.2  # of the logarithm of an adaptive norm
EXPECTED_PER_NOISE = 20  # the paper's standard deviation of the noisy count: a twentieth of the participants


class Norm:
    """The norm to which uploads are clipped: fixed, or following a quantile of the uploads' own norms.

    Andrew, Thakkar, McMahan, Ramaswamy: Differentially Private Learning with Adaptive Clipping. NeurIPS 2021.
    The uploads within the norm are counted, with noise of their own. The sums get more noise in return, so
    that both together cost what `noise` says (Theorem 1).
    """

    def __init__(self, norm: float, quantile: float, noise: float, expected: float) -> None:
        """`quantile`: 0 for a fixed norm. `noise`: multiplier of a whole round. `expected`: participants."""
        self.value = torch.tensor([norm], dtype=torch.float64)
        self.quantile, self.expected = quantile, expected
        self.count_noise = expected / EXPECTED_PER_NOISE
        self.noise = noise  # multiplier of the sums
        if quantile:
            if noise >= 2 * self.count_noise:
                raise UserError(
                    f"privacy.adaptive = {quantile}: with {expected:g} participants expected, noise = "
                    f"{noise:g} leaves nothing for the sums; expected more clients, more participation, or 0"
                )
            # one client changes the count by at most a half
            self.noise = (noise**-2 - (2 * self.count_noise) ** -2) ** -0.5

    def follow(self, within: int, counted: int, normal: float) -> None:
        """`within`: uploads within the norm, of all that were counted. `normal`: a normal number."""
        if self.quantile:
            noisy = (within - counted / 2 + self.count_noise * normal) / self.expected + 0.5
            self.value *= exp(-STEP * (noisy - self.quantile))


def clipped_sums(
    uploads: Uploaded, shapes: Mapping[str, Size], origin: State, norm: float
) -> tuple[State, int]:
    """The sums of clipped uploads, by array, and how many uploads were within the norm.

    `shapes`: of the arrays of one upload. An upload that is not finite counts as zero.
    """
    source, ids, within = uploads.source, uploads.ids, 0
    total = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
    step = max(1, AT_ONCE // max(1, sum(part.numel() for part in total.values())))
    for start in range(0, len(ids), step):
        some = ids[start : start + step]
        moved = {name: _moved(source.rows(name, some), origin.get(name)) for name in source.names}
        lengths = torch.stack([rows.flatten(1).square().sum(1) for rows in moved.values()]).sum(0).sqrt()
        good = lengths.isfinite()
        within += int((lengths <= norm).sum())
        scales = torch.where(good, norm / lengths.clamp(min=norm), 0.0)
        for name, rows in moved.items():
            rows[~good] = 0.0
            total[name] += sums.weighted(rows, np.arange(len(some)), some, scales)
    return total, within


def _moved(rows: Tensor, start: Tensor | None) -> Tensor:
    far = rows.cpu().double()
    return far.clone() if start is None else far - start.cpu().double()
