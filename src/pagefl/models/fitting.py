"""A model that fits given examples, by name: for federations whose shape is only known when they are read."""

from typing import Literal

import torch
from torch import nn

from pagefl.core import summary
from pagefl.core.errors import UserError
from pagefl.core.examples import Splits

from .cnn import SMALLEST, cnn
from .logistic import logistic
from .lstm import lstm
from .mlp import Mlp
from .pixels import Pixels

Kind = Literal["auto", "cnn", "mlp", "logistic", "lstm"]


def fitting(kind: Kind, data: Splits) -> nn.Module:
    """`auto`: cnn for square images, lstm for texts, mlp otherwise.

    Bytes are normalised. Floats are taken as they are, since who published them normalised them.
    """
    x, classes = data.train.x[:1], 1 + max(int(examples.y.max()) for _, examples in data.named())
    shape, features = x.shape[1:], x[0].numel()
    image = len(shape) == 3 and shape[1] == shape[2] >= SMALLEST
    text = len(shape) == 1 and not x.is_floating_point()
    if kind == "auto":
        kind = "cnn" if image else "lstm" if text else "mlp"
    if not {"cnn": image, "lstm": text, "mlp": not text, "logistic": not text}[kind]:
        raise UserError(
            f"task.model = {kind!r}: it does not fit examples {summary.examples(x)}; expected cnn for square "
            f"images of {SMALLEST} or more, lstm for texts, mlp or logistic for numbers"
        )
    if kind == "lstm":
        return lstm(max(classes, 1 + max(int(examples.x.max()) for _, examples in data.named())))
    normalised = x.dtype == torch.uint8
    if kind == "cnn":
        return cnn(classes, shape[0], shape[1], normalised=normalised)
    model = Mlp(features, classes) if kind == "mlp" else logistic(features, classes)
    first: list[nn.Module] = [Pixels((0.5,), (0.5,))] if normalised else []
    return nn.Sequential(*first, nn.Flatten(), model) if first or len(shape) > 1 else model
