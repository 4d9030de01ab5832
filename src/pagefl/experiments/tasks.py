"""Named tasks: one function each. Its arguments are the task's own settings."""

from collections.abc import Callable
from functools import partial
from typing import Annotated

import torch
from pydantic import Field
from torch import nn

from pagefl.core.errors import UserError, shortened
from pagefl.core.examples import Splits
from pagefl.core.memory import needs
from pagefl.data import images, shakespeare
from pagefl.data.cifar100 import CIFAR100
from pagefl.data.cifar100 import CLASSES as CIFAR100_CLASSES
from pagefl.data.images import Split
from pagefl.data.originals import Original
from pagefl.data.synthetic import CLASSES, FEATURES
from pagefl.data.synthetic import synthetic as synthetic_data
from pagefl.data.tiny_imagenet import CLASSES as TINY_CLASSES
from pagefl.data.tiny_imagenet import TINY_IMAGENET
from pagefl.models.logistic import logistic
from pagefl.models.lstm import lstm
from pagefl.models.mlp import Mlp
from pagefl.models.resnet import Stem, resnet18
from pagefl.runtime.task import Task

Count = Annotated[int, Field(ge=1, le=10**15)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Spread = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Width = Annotated[int, Field(ge=2, le=10**15, multiple_of=2)]  # GroupNorm has two groups


def _task(name: str, module: Callable[[], nn.Module], data: Callable[[], Splits]) -> Task:
    """A task. Its model is first made on torch's meta device, where tensors have a shape but no memory."""

    def made() -> nn.Module:
        try:
            with torch.device("meta"):
                size = sum(parameter.nbytes for parameter in module().parameters())
        except RuntimeError as error:  # larger than torch can count
            raise UserError(f"task = {name}: the model is too large: {shortened(str(error))}; use a smaller one") from None
        needs(size, f"task = {name}: the weights of one model", "use a smaller one")
        return module()

    return Task(name, made, data)


def synthetic(seed: int, clients: Count = 100, alpha: Spread = 0.0, beta: Spread = 1.0, theta: Spread = 0.0) -> Task:
    """Logistic regression on Synthetic(alpha, beta), 30 features, 30 classes, 375 examples a client.

    Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020; generated as by Acar et al., ICLR 2021.

    clients: number of clients
    alpha: spread of the clients' own true models; 0 for one true model
    beta: spread of the clients' inputs
    theta: spread of the clients' data sizes (log-normal)
    """
    return _task("synthetic", lambda: logistic(FEATURES, CLASSES), lambda: synthetic_data(clients, seed, alpha, beta, theta))


def synthetic_mlp(
    seed: int, clients: Count = 100, alpha: Spread = 0.0, beta: Spread = 1.0, theta: Spread = 0.0, hidden: Count = 64
) -> Task:
    """Synthetic with one hidden layer: a small model that has a body and a head.

    clients: number of clients
    alpha: spread of the clients' own true models; 0 for one true model
    beta: spread of the clients' inputs
    theta: spread of the clients' data sizes (log-normal)
    hidden: units of the hidden layer
    """
    return _task(
        "synthetic-mlp", lambda: Mlp(FEATURES, CLASSES, hidden), lambda: synthetic_data(clients, seed, alpha, beta, theta)
    )


def cifar100(
    seed: int,
    clients: Count = 100,
    per_client: Count = 500,
    split: Split = "labels",
    delta: Positive = 0.3,
    sigma: Spread = 0.0,
    augment: bool = True,
    stem: Stem = "imagenet",
    width: Width = 64,
) -> Task:
    """CIFAR-100 over clients whose mix of classes is Dir(delta), ResNet-18 with GroupNorm.

    Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.

    clients: number of clients
    per_client: images of each client, training and test together
    split: how images are dealt out: by Dirichlet label skew, evenly, or in shards of two classes
    delta: concentration of the label skew; smaller is more skewed
    sigma: spread of the clients' data sizes (log-normal); 0 for equal sizes
    augment: crop and flip images in training
    stem: first layer: imagenet (7×7, stride 2, pooling; the paper's programs) or small (3×3)
    width: channels after the stem; 64 is ResNet-18
    """
    return _task(
        "cifar100",
        lambda: resnet18(CIFAR100_CLASSES, stem, width),
        lambda: images.federation(CIFAR100, clients, per_client, split, delta, sigma, augment, seed),
    )


def tiny_imagenet(
    seed: int,
    clients: Count = 100,
    per_client: Count = 1000,
    split: Split = "labels",
    delta: Positive = 0.3,
    sigma: Spread = 0.0,
    augment: bool = False,
    stem: Stem = "imagenet",
    width: Width = 64,
) -> Task:
    """Tiny-ImageNet over clients whose mix of 200 classes is Dir(delta), ResNet-18 with GroupNorm.

    Le, Yang, Tiny ImageNet Visual Recognition Challenge, 2015.

    clients: number of clients
    per_client: images of each client, training and test together
    split: how images are dealt out: by Dirichlet label skew, evenly, or in shards of two classes
    delta: concentration of the label skew; smaller is more skewed
    sigma: spread of the clients' data sizes (log-normal); 0 for equal sizes
    augment: crop and flip images in training
    stem: first layer: imagenet (7×7, stride 2, pooling; the paper's programs) or small (3×3)
    width: channels after the stem; 64 is ResNet-18
    """
    return _task(
        "tiny-imagenet",
        lambda: resnet18(TINY_CLASSES, stem, width),
        lambda: images.federation(TINY_IMAGENET, clients, per_client, split, delta, sigma, augment, seed),
    )


def shakespeare_roles(seed: int, clients: Count = 100, per_client: Count = 8000, hidden: Count = 100) -> Task:
    """The next character of what a role in Shakespeare's plays says, a two-layer LSTM.

    Caldas et al., LEAF: A Benchmark for Federated Settings, 2018. A client is a role with enough samples.

    clients: number of clients
    per_client: samples of each client, training and test together
    hidden: units of each LSTM layer
    """
    return _task(
        "shakespeare",
        lambda: lstm(len(shakespeare.ALPHABET), hidden=hidden),
        lambda: shakespeare.federation(clients, per_client, seed),
    )


def small(builder: Callable[..., Task], **defaults: object) -> Callable[..., Task]:
    """The same task at a size that a laptop trains in minutes."""
    smaller = partial(builder, **defaults)
    first, _, rest = (builder.__doc__ or "").partition("\n")
    smaller.__doc__ = f"{first.removesuffix('.')}, at a laptop's size.\n{rest}"
    return smaller


TASKS: dict[str, Callable[..., Task]] = {
    "synthetic": synthetic,
    "synthetic-mlp": synthetic_mlp,
    "cifar100": cifar100,
    "cifar100-small": small(cifar100, clients=20, per_client=500, width=16),
    "tiny-imagenet": tiny_imagenet,
    "tiny-imagenet-small": small(tiny_imagenet, clients=20, per_client=500, width=8),
    "shakespeare": shakespeare_roles,
    "shakespeare-small": small(shakespeare_roles, clients=20, per_client=400, hidden=64),
}
ORIGINALS: dict[str, Original] = {
    name: original
    for name in TASKS
    for original in (CIFAR100, TINY_IMAGENET, shakespeare.SHAKESPEARE)
    if name.removesuffix("-small") == original.name
}
