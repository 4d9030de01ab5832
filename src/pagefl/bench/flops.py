"""The floating-point operations of a round, and how many a core can do."""

from collections.abc import Callable

import torch
from torch import nn

from pagefl.core.examples import Splits
from pagefl.core.flops import of_example
from pagefl.runtime.settings import Settings

from .clock import fastest

SIDE = 1024  # of the matrices whose product is the peak


def of_round(module: nn.Module, data: Splits, settings: Settings) -> int:
    """Every client's training, and one evaluation of its test data and of the server's data."""
    one = of_example(module, data.train.x[:1])
    judged = len(data.test.x) + len(data.game.x) + len(data.server_test.x)
    return one.training * settings.epochs * len(data.train.x) + one.evaluation * judged


def sgemm(clock: Callable[[], float]) -> float:
    """FLOP/s of the fastest large float32 product, on the threads that torch has now."""
    a = torch.ones(SIDE, SIDE)
    return 2 * SIDE**3 / fastest(lambda: torch.mm(a, a), clock)
