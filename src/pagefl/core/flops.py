"""The floating-point operations of a module, counted by its products of matrices and its convolutions."""

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d
from torch.utils.flop_counter import FlopCounterMode

BY_WEIGHT = 6  # of one example's training where nothing can be counted: a product in each of three passes


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


def of_training(module: nn.Module, x: Tensor) -> int:
    """Of one example's gradient. `x`: a batch of one example."""
    try:
        counted = of_example(module, x).training
    except (RuntimeError, TypeError, ValueError):  # a user's own module may need values, not only shapes
        counted = 0
    return counted or BY_WEIGHT * sum(parameter.numel() for parameter in module.parameters())


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
