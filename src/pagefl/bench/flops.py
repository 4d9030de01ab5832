"""The floating-point operations of a module, and how many a core can do."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d
from torch.utils.flop_counter import FlopCounterMode

from pagefl.core.examples import Splits
from pagefl.runtime.settings import Settings

from .clock import fastest

SIDE = 1024  # of the matrices whose product is the peak


class Flops(NamedTuple):
    """Of one example."""

    training: int
    evaluation: int


def of_example(module: nn.Module, x: Tensor) -> Flops:
    """`x`: a batch of one example. Products with padding are not counted."""
    module, x = copy.deepcopy(module).to("meta"), x.to("meta")  # shapes only: nothing is computed
    convolutions = {torch.ops.aten.convolution: _forward, torch.ops.aten.convolution_backward: _backward}
    with FlopCounterMode(display=False, custom_mapping=convolutions) as counter:
        logits = module(x)
        forward = counter.get_total_flops()
        logits.sum().backward()
    return Flops(training=counter.get_total_flops(), evaluation=forward)


def of_round(module: nn.Module, data: Splits, settings: Settings) -> int:
    """Every client's training, and one evaluation of its test data and of the server's data."""
    one = of_example(module, data.train.x[:1])
    judged = len(data.test.x) + len(data.game.x) + len(data.server_test.x)
    return one.training * settings.epochs * len(data.train.x) + one.evaluation * judged


def sgemm(clock: Callable[[], float]) -> float:
    """FLOP/s of the fastest large float32 product, on the threads that torch has now."""
    a = torch.ones(SIDE, SIDE)
    return 2 * SIDE**3 / fastest(lambda: torch.mm(a, a), clock)


def _forward(x: list[int], weight: list[int], _bias: object, *geometry: Any, **_: object) -> int:
    """The sum of a convolution of ones is its number of products with pixels that are not padding."""
    stride, padding, dilation, _transposed, _output_padding, groups = geometry
    products = conv2d(
        torch.ones(x).double(), torch.ones(weight).double(), None, stride, padding, dilation, groups
    )
    return 2 * int(products.sum())


def _backward(_slope: object, x: list[int], weight: list[int], bias: object, *rest: Any, **_: object) -> int:
    """As many again for the gradient of the weights, and for that of the input where it is needed."""
    *geometry, wanted = rest
    return int(sum(wanted[:2])) * _forward(x, weight, bias, *geometry)
