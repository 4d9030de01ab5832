"""Builders of the named tasks: one function each. Its arguments are the settings of the task itself."""

from collections.abc import Callable
from functools import cache, partial
from inspect import cleandoc
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import nn

from pagefl.core.errors import UserError, shortened
from pagefl.core.examples import Splits
from pagefl.core.memory import needs
from pagefl.data import (
    cifar10,
    cifar100,
    digits,
    femnist,
    flgo,
    images,
    leaf,
    merged,
    mnist,
    patch_federation,
    patches,
    pfllib,
    shakespeare,
)
from pagefl.data.images import Split
from pagefl.data.originals import Original
from pagefl.data.source import ClientSource
from pagefl.data.synthetic import CLASSES, FEATURES, SyntheticSource
from pagefl.data.synthetic import synthetic as synthetic_in_memory
from pagefl.models.characters import character_mlp
from pagefl.models.cnn import cnn
from pagefl.models.fitting import Kind, fitting
from pagefl.models.logistic import logistic
from pagefl.models.lstm import lstm
from pagefl.models.mlp import Mlp
from pagefl.models.resnet import Stem, resnet18
from pagefl.runtime.task import Task

Builder = Callable[..., Task]
IN_MEMORY = 10_000  # clients of Synthetic; those of a larger federation are drawn when they are needed
Count = Annotated[int, Field(ge=1, le=10**15)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Spread = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Width = Annotated[int, Field(ge=2, le=10**15, multiple_of=2)]  # GroupNorm has two groups


def _task(name: str, module: Callable[[], nn.Module], data: Callable[[], Splits | ClientSource]) -> Task:
    return Task(name, lambda: _measured(name, module), data)


def _measured(name: str, module: Callable[[], nn.Module]) -> nn.Module:
    """A model. It is first made on torch's meta device, where tensors have a shape but no memory."""
    try:
        with torch.device("meta"):
            size = sum(parameter.nbytes for parameter in module().parameters())
    except RuntimeError as error:  # larger than torch can count
        raise UserError(
            f"task = {name}: the model is too large: {shortened(str(error))}; use a smaller one"
        ) from None
    needs(size, f"task = {name}: the weights of one model", "use a smaller one")
    return module()


def synthetic_data(clients: int, seed: int, *spreads: float) -> Splits | ClientSource:
    """In memory, or drawn client by client if there are many."""
    make = synthetic_in_memory if clients <= IN_MEMORY else SyntheticSource
    return make(clients, seed, *spreads)


def synthetic(
    seed: int, clients: Count = 100, alpha: Spread = 0.0, beta: Spread = 1.0, theta: Spread = 0.0
) -> Task:
    """Logistic regression on Synthetic(alpha, beta), 30 features, 30 classes, 375 examples a client.

    Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020; generated as by Acar et al., ICLR
    2021.

    clients: number of clients; the examples of more than 10,000 are drawn when they are needed
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

    clients: number of clients; the examples of more than 10,000 are drawn when they are needed
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


def cnn_task(
    original: Original,
    classes: int,
    channels: int,
    side: int,
    seed: int,
    clients: Count = 100,
    per_client: Count = 500,
    split: Split = "labels",
    delta: Positive = 0.3,
    sigma: Spread = 0.0,
    augment: bool = False,
    hidden: Count = 512,
) -> Task:
    """Images over clients whose mix of classes is Dir(delta), the four-layer CNN of FedAvg's paper.

    clients: number of clients
    per_client: images of each client, training and test together
    split: how images are dealt out: by Dirichlet label skew, evenly, or in shards of two classes
    delta: concentration of the label skew; smaller is more skewed
    sigma: spread of the clients' data sizes (log-normal); 0 for equal sizes
    augment: crop and flip images in training
    hidden: units of the dense layer
    """
    return _task(
        original.name,
        lambda: cnn(classes, channels, side, hidden),
        lambda: images.federation(original, clients, per_client, split, delta, sigma, augment, seed),
    )


def femnist_writers(seed: int, clients: Count = 100, fewest: Count = 50, hidden: Count = 512) -> Task:
    """Handwritten digits and letters, a client is a writer, the four-layer CNN of FedAvg's paper.

    Caldas et al., LEAF: A Benchmark for Federated Settings, 2018.

    clients: number of clients, drawn from the writers
    fewest: writers with fewer images are left out
    hidden: units of the dense layer
    """
    return _task(
        "femnist",
        lambda: cnn(femnist.CLASSES, 1, femnist.SIDE, hidden),
        lambda: femnist.federation(clients, fewest, seed),
    )


NONE: list[int] = []
CountOrAll = Annotated[int, Field(ge=0, le=10**15)]
Share = Annotated[float, Field(gt=0, lt=1)]
INDEXED = {
    original.name: original
    for original in (cifar100.CIFAR100, cifar10.CIFAR10, mnist.MNIST, mnist.FASHION_MNIST)
}


def _read_task(name: str, model: Kind, read: Callable[[], Splits]) -> Task:
    """A task whose model takes its shape from the examples."""
    data = cache(read)

    def made() -> nn.Module:
        found = data()  # read before the model is measured, since nothing can be read on the meta device
        return _measured(name, lambda: fitting(model, found))

    return Task(name, made, data)


def pfllib_folder(
    seed: int, folder: str, clients: CountOrAll = 0, without: list[int] = NONE, model: Kind = "auto"
) -> Task:
    """A partition that PFLlib has written: config.json, train/I.npz and test/I.npz.

    Zhang et al., PFLlib: A Beginner-Friendly and Comprehensive Personalized Federated Learning Library, 2025.

    folder: where config.json is
    clients: only the first ones; 0 for all
    without: clients to leave out, by their published numbers, such as those whose files are missing
    model: auto is cnn for square images and mlp otherwise
    """
    return _read_task(
        "pfllib", model, lambda: pfllib.from_folder(folder, clients=clients, without=without, seed=seed)
    )


def flgo_partition(
    seed: int,
    folder: str,
    dataset: Literal["cifar100", "cifar10", "mnist", "fashion-mnist"] = "cifar100",
    clients: CountOrAll = 0,
    test: Share = images.LOCAL_TEST,
    model: Kind = "auto",
) -> Task:
    """A partition that FLGo has written: data.json, with places in the original files of a data set.

    Wang et al., FLGo: A Fully Customizable Federated Learning Platform, 2023.

    folder: where data.json is
    dataset: the data set that it counts in, below PAGEFL_DATA
    clients: only the first ones; 0 for all
    test: share of each client's images for its own test
    model: auto is cnn
    """
    return _read_task(
        "flgo",
        model,
        lambda: flgo.from_json(folder, INDEXED[dataset], clients=clients, test=test, seed=seed),
    )


def leaf_folder(
    seed: int,
    folder: str,
    clients: CountOrAll = 0,
    fewest: Count = 2,
    test: Share = leaf.TEST,
    model: Kind = "auto",
) -> Task:
    """A federation that LEAF has written: JSON files in train and test, or in all_data. A client is a user.

    Caldas et al., LEAF: A Benchmark for Federated Settings, 2018.

    folder: where train and test, or all_data, are
    clients: number of users, drawn by the seed; 0 for all
    fewest: users with fewer samples are left out
    test: share of each user's samples for its own test, if there is only all_data
    model: auto is cnn for images, lstm for texts and mlp for other numbers
    """
    return _read_task(
        "leaf",
        model,
        lambda: leaf.from_folder(folder, clients=clients, fewest=fewest, test=test, seed=seed),
    )
