"""Builders of the named tasks: one function each. Its arguments are the settings of the task itself."""

from collections.abc import Callable
from functools import partial
from inspect import cleandoc
from typing import Annotated

import torch
from pydantic import Field
from torch import nn

from pagefl.core.errors import UserError, shortened
from pagefl.core.examples import Splits
from pagefl.core.memory import needs
from pagefl.data import digits, images, merged, patch_federation, patches, shakespeare
from pagefl.data.images import Split
from pagefl.data.originals import Original
from pagefl.data.synthetic import CLASSES, FEATURES
from pagefl.data.synthetic import synthetic as synthetic_data
from pagefl.models.characters import character_mlp
from pagefl.models.cnn import cnn
from pagefl.models.logistic import logistic
from pagefl.models.lstm import lstm
from pagefl.models.mlp import Mlp
from pagefl.models.resnet import Stem, resnet18
from pagefl.runtime.task import Task

Builder = Callable[..., Task]
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
            raise UserError(
                f"task = {name}: the model is too large: {shortened(str(error))}; use a smaller one"
            ) from None
        needs(size, f"task = {name}: the weights of one model", "use a smaller one")
        return module()

    return Task(name, made, data)


def synthetic(
    seed: int, clients: Count = 100, alpha: Spread = 0.0, beta: Spread = 1.0, theta: Spread = 0.0
) -> Task:
    """Logistic regression on Synthetic(alpha, beta), 30 features, 30 classes, 375 examples a client.

    Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020; generated as by Acar et al., ICLR
    2021.

    clients: number of clients
    alpha: spread of the clients' own true models; 0 for one true model
    beta: spread of the clients' inputs
    theta: spread of the clients' data sizes (log-normal)
    """
    return _task(
        "synthetic",
        lambda: logistic(FEATURES, CLASSES),
        lambda: synthetic_data(clients, seed, alpha, beta, theta),
    )


def synthetic_mlp(
    seed: int,
    clients: Count = 100,
    alpha: Spread = 0.0,
    beta: Spread = 1.0,
    theta: Spread = 0.0,
    hidden: Count = 64,
) -> Task:
    """Synthetic with one hidden layer: a small model that has a body and a head.

    clients: number of clients
    alpha: spread of the clients' own true models; 0 for one true model
    beta: spread of the clients' inputs
    theta: spread of the clients' data sizes (log-normal)
    hidden: units of the hidden layer
    """
    return _task(
        "synthetic-mlp",
        lambda: Mlp(FEATURES, CLASSES, hidden),
        lambda: synthetic_data(clients, seed, alpha, beta, theta),
    )


def images_task(
    original: Original,
    classes: int,
    seed: int,
    clients: Count = 100,
    per_client: Count = 500,
    split: Split = "labels",
    delta: Positive = 0.3,
    sigma: Spread = 0.0,
    augment: bool = False,
    stem: Stem = "imagenet",
    width: Width = 64,
) -> Task:
    """Images over clients whose mix of classes is Dir(delta), ResNet-18 with GroupNorm.

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
        original.name,
        lambda: resnet18(classes, stem, width),
        lambda: images.federation(original, clients, per_client, split, delta, sigma, augment, seed),
    )


def patches_task(
    original: Original,
    classes: int,
    seed: int,
    clients: Count = 100,
    per_client: Count = 300,
    split: Split = "labels",
    delta: Positive = 0.3,
    sigma: Spread = 0.0,
    features: Annotated[int, Field(ge=1, le=patches.POOLED)] = 128,
) -> Task:
    """Images over clients whose mix of classes is Dir(delta), logistic regression on fixed patch features.

    clients: number of clients
    per_client: images of each client, training and test together
    split: how images are dealt out: by Dirichlet label skew, evenly, or in shards of two classes
    delta: concentration of the label skew; smaller is more skewed
    sigma: spread of the clients' data sizes (log-normal); 0 for equal sizes
    features: number of patch features of an image, fitted on the server's game half
    """
    return _task(
        f"{original.name}-patches",
        lambda: logistic(features, classes),
        lambda: patch_federation.federation(
            original, clients, per_client, split, delta, sigma, features, seed
        ),
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


def shakespeare_mlp(
    seed: int,
    clients: Count = 100,
    per_client: Count = 8000,
    length: Annotated[int, Field(ge=1, le=shakespeare.LENGTH)] = 8,
    hidden: Count = 64,
) -> Task:
    """The next character of what a role in Shakespeare's plays says, one hidden layer on the last characters.

    Caldas et al., LEAF: A Benchmark for Federated Settings, 2018. The model is that of Bengio et al., A
    Neural Probabilistic Language Model, JMLR 2003.

    clients: number of clients
    per_client: samples of each client, training and test together
    length: number of characters that predict the next one
    hidden: units of the hidden layer
    """
    return _task(
        "shakespeare-mlp",
        lambda: character_mlp(len(shakespeare.ALPHABET), length, hidden=hidden),
        lambda: shakespeare.federation(clients, per_client, seed, length),
    )


def merged_images_task(
    original: Original,
    classes: int,
    seed: int,
    clients: Count = 20,
    delta: Positive = 0.1,
    hidden: Count = 512,
) -> Task:
    """Images divided as in PFLlib's benchmark, a CNN of four layers.

    clients: number of clients
    delta: concentration of the shares of a class that clients get; smaller is more skewed
    hidden: units of the hidden dense layer
    """
    return _task(
        f"{original.name}-cnn",
        lambda: cnn(classes, hidden=hidden),
        lambda: merged.federation(original, clients, delta, seed),
    )


def digits_task(seed: int, clients: Count = 20, delta: Positive = 0.3, hidden: Count = 32) -> Task:
    """Handwritten digits that come with pagefl, over clients whose mix of classes is Dir(delta), an MLP.

    Alpaydin, Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998 (CC BY
    4.0).

    clients: number of clients
    delta: concentration of the label skew; smaller is more skewed
    hidden: units of the hidden layer
    """
    return _task(
        "digits",
        lambda: Mlp(digits.PIXELS, digits.CLASSES, hidden),
        lambda: digits.federation(clients, delta, seed),
    )


def variant(builder: Builder, title: str, *fixed: object, **defaults: object) -> Builder:
    """The same builder with its first arguments fixed, other defaults, and another title in its docstring."""
    made = partial(builder, *fixed, **defaults)
    _, _, rest = cleandoc(builder.__doc__ or "").partition("\n\n")
    made.__doc__ = f"{title}\n\n{rest}"
    return made
