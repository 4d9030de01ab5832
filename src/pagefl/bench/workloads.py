"""The workloads of `pagefl bench engine`. To add one, add an entry to WORKLOADS."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pagefl.data.federated import FederatedData
from pagefl.data.pairs import Pair
from pagefl.experiments.builders import synthetic
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


def _images(quick: bool) -> Task:
    return _random(
        lambda: resnet18(100, width=4 if quick else 64), lambda n: _bytes(256, n, 3, 32, 32), 100, quick, 50
    )


def _text(quick: bool) -> Task:
    return _random(lstm, lambda n: _bytes(80, n, 80), 80, quick, 50 if quick else 200)


def _bytes(below: int, *shape: int) -> Tensor:
    return torch.randint(below, shape, dtype=torch.uint8)


def _random(
    module: Callable[[], nn.Module], draw: Callable[[int], Tensor], classes: int, quick: bool, size: int
) -> Task:
    """A task with random data, to time training. Models are evaluated on one example only."""

    def pair(n: int) -> Pair:
        return draw(n), torch.randint(classes, (n,))

    train, test, holdout = ([pair(n) for _ in range(2 if quick else 10)] for n in (size, 1, 1))
    return Task("noise", module, FederatedData(train, test, pair(2), holdout))


LOGISTIC: dict[str, Any] = {
    "lr": 0.1,
    "epochs": 5,
    "batch_size": 5,
    "weight_decay": 1e-5,
    "clip": 10.0,
    "reward_penalty": 1e-5,
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
    "W3": Workload("ResNet-18, 10 clients", 1.2, _images, DEEP, 7, 1),
    "W4": Workload("LSTM, 10 clients", 1.5, _text, DEEP, 7, 1),
}
