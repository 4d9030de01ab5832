"""Multinomial logistic regression with zero initial weights. The paper trains it on Synthetic."""

from torch import nn


def logistic(features: int, classes: int) -> nn.Module:
    module = nn.Linear(features, classes)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    return module
