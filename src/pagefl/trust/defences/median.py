"""Coordinate-wise median. Yin, Chen, Kannan, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates. ICML 2018."""

import torch
from torch import Tensor

from pagefl.trust.geometry import Numbers


def median(columns: Tensor, weights: Tensor, numbers: Numbers) -> Tensor:
    """The weighted median of each column; halfway between two values where both sides weigh the same."""
    values, order = columns.sort(dim=0, stable=True)
    below = weights[order].cumsum(0)
    half = below[-1] / 2
    low, high = (
        (below < half * (1 + shift)).sum(0, keepdim=True).clamp(max=len(values) - 1)
        for shift in (-2e-9, 2e-9)
    )
    return torch.lerp(values.gather(0, low), values.gather(0, high), 0.5)[0]
