"""The workloads of `pagefl bench engine`. To add one, add an entry to WORKLOADS."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pagefl.data.federated import FederatedData
from pagefl.data.pairs import Pair
from pagefl.experiments.builders import synthetic
from pagefl.models.cnn import cnn
from pagefl.models.lstm import lstm
from pagefl.models.resnet import resnet18
from pagefl.runtime.task import Task


class Workload(NamedTuple):
    title: str
    bar: float  # required speed-up
    task: Callable[[bool], Task]  # argument: True for toy size
    settings: dict[str, Any]
    turns: int  # rounds of the plain loop
    rounds: int  # rounds of the engine before each of them
    memory_bar_mb: float | None = None
    roofline: bool = False  # for logistic regression only


def images(n: int) -> Tensor:
    return torch.randint(256, (n, 3, 32, 32), dtype=torch.uint8)


def texts(n: int) -> Tensor:
    return torch.randint(80, (n, 80), dtype=torch.uint8)


def noise(
    module: Callable[[], nn.Module],
    draw: Callable[[int], Tensor],
    classes: int,
    clients: int,
    size: int,
    test: int = 1,
) -> Task:
    """A task with random data, to time training. Models are evaluated on one example only, unless `test` says
    more."""

    def pair(n: int) -> Pair:
        return draw(n), torch.randint(classes, (n,))

    train, judged, holdout = ([pair(n) for _ in range(clients)] for n in (size, test, 1))
    return Task("noise", module, FederatedData(train, judged, pair(2), holdout))


def _resnet(width: int, clients: int, size: int) -> Callable[[bool], Task]:
    return lambda quick: (
        noise(lambda: resnet18(100, width=4), images, 100, 2, 50)
        if quick
        else noise(lambda: resnet18(100, width=width), images, 100, clients, size)
    )


def _cnn(quick: bool) -> Task:
    return noise(lambda: cnn(100), images, 100, *(2, 50) if quick else (20, 350))


def _lstm(quick: bool) -> Task:
    return noise(lstm, texts, 80, *(2, 50) if quick else (10, 200))


LOGISTIC: dict[str, Any] = {
    "lr": 0.1,
    "epochs": 5,
    "batch_size": 5,
    "weight_decay": 1e-5,
    "clip": 10.0,
    "reward_penalty": 1e-5,
    "personal": {"when": "never"},  # a round is timed, and nothing after it
}
DEEP = {**LOGISTIC, "epochs": 1, "batch_size": 50}
WORKLOADS = {
    "W": Workload(
        "logistic, 100 clients",
        100,
        lambda quick: synthetic(0, 4 if quick else 100),
        LOGISTIC,
        3,
        10,
        roofline=True,
    ),
    "W2": Workload(
        "logistic, 1000 clients", 100, lambda quick: synthetic(0, 8 if quick else 1000), LOGISTIC, 3, 3, 1000
    ),
    "W3": Workload("ResNet-18, 10 clients", 4, _resnet(64, 10, 50), DEEP, 7, 1),
    "W4": Workload("LSTM, 10 clients", 1.5, _lstm, DEEP, 7, 1),
    "W5": Workload(
        "ResNet-18 of width 16, 20 clients", 2.5, _resnet(16, 20, 350), {**DEEP, "batch_size": 32}, 7, 1
    ),
    "W6": Workload("CNN, 20 clients, batch 10", 1.9, _cnn, {**DEEP, "batch_size": 10}, 5, 1),
    "W6b": Workload("CNN, 20 clients, batch 32", 1.9, _cnn, {**DEEP, "batch_size": 32}, 5, 1),
}
