"""Coordinate-wise trimmed mean. Yin, Chen, Kannan, Bartlett: Byzantine-Robust Distributed Learning: Towards
Optimal Statistical Rates. ICML 2018."""

from torch import Tensor

from pagefl.trust.geometry import Numbers


def trimmed_mean(columns: Tensor, weights: Tensor, numbers: Numbers) -> Tensor:
    """The weighted mean of each column, without as many of its largest and smallest as may be hostile."""
    values, order = columns.sort(dim=0, stable=True)
    kept = slice(numbers.hostile, len(values) - numbers.hostile)
    values, own = values[kept], weights[order[kept]].clamp(min=1e-300)  # should all weights that stay be zero
    return (values * own).sum(0) / own.sum(0)
