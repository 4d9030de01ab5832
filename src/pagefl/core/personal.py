"""The personal step: each client's own model, made from the shared one after training.

One learning rate and one number of epochs serve all clients. They are chosen by the mean loss on a hold-out
of the clients' training data, and "no training" is among the choices. Then the step is taken on all training
data. It is plain SGD, whatever the optimiser of the run.
"""

from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import rng
from .algorithm import Algorithm
from .arrays import Floats, Integers
from .examples import Examples
from .training.stack import Stack

HOLDOUT = 0.25  # share of each client's training data
FACTORS = (0.1, 1 / 3, 1.0, 3.0, 10.0)  # of the run's own learning rate
FEWEST = 4  # epochs that are tried at least
WORST = 1e9  # loss of a model that diverged


class Step(NamedTuple):
    start: Literal["shared", "own"]  # the shared model, or the personal one that the algorithm makes of it
    lr: float = 0.0
    epochs: int = 0


class Trials(NamedTuple):
    """What clients found on their hold-outs."""

    losses: Floats  # [clients, choices]; NaN where a client has no hold-out or did not tell
    gradients: float  # gradient evaluations that it took, in examples


class Tuned(NamedTuple):
    """The clients' models after the personal step."""

    accuracy: Floats  # on their test data
    gradients: float


def choices(lr: float, epochs: int) -> list[Step]:
    """`lr`, `epochs`: the run's own."""
    steps = [Step("shared", lr * factor, stop) for factor in FACTORS for stop in stops(epochs)]
    return [Step("shared"), Step("own"), *steps]


def stops(epochs: int) -> list[int]:
    """1, 2, 4, … epochs, up to the run's own."""
    most = max(FEWEST, epochs)
    return [*(2**i for i in range(most.bit_length()) if 2**i < most), most]


def choose(found: Floats, lr: float, epochs: int) -> Step:
    """The step with the lowest mean loss over the clients that told theirs."""
    told = found[~np.isnan(found).all(1)]
    if not len(told):
        return Step("shared")
    # the algorithm's own model may be missing from all clients' choices
    means = np.where(np.isnan(told).any(0), np.inf, told.mean(0))
    return choices(lr, epochs)[int(means.argmin())]


def cut(examples: Examples, places: Tensor, numbers: Integers, seed: int) -> tuple[Examples, Examples]:
    """The examples that the clients at these places train on, and those that they hold out.

    A client with a single example does both with it. `numbers`: of these clients.
    """
    fit, hold = [], []
    for place, number in zip(places.tolist(), numbers.tolist(), strict=True):
        x, y = examples.client(place)
        order = examples.order(place, rng.stream(seed, "personal hold-out", number))
        kept = max(1, len(y) - max(1, round(HOLDOUT * len(y))))
        left, held = order[:kept], order[kept:] if len(y) > 1 else order
        fit.append((x[left], y[left]))
        hold.append((x[held], y[held]))
    return replace(Examples.of(fit, examples.augment), in_order=examples.in_order), Examples.of(hold)


def losses(clients: Stack, hold: Examples, algorithm: Algorithm, new: bool) -> Floats:
    """Every choice's loss on each client's hold-out, [n, choices].

    `clients` train on what is not held out. `new`: whether the hold-out is new to the personal models that
    the algorithm makes. It is not if they have been trained on it in earlier rounds.
    """

    def loss(rows: Tensor) -> Floats:
        found = clients.model.score(rows, hold, torch.arange(len(hold))).loss
        return np.nan_to_num(found, nan=WORST, posinf=WORST).clip(max=WORST)

    start = algorithm.adapt(clients)
    found = [loss(start), loss(algorithm.local(clients).personal) if new else np.full(len(hold), np.nan)]
    lr = float(clients.lr[0])
    for factor in FACTORS:
        rows, done = start, 0
        for stop in stops(int(clients.epochs[0])):
            rows = train(clients, rows, lr * factor, stop - done)
            found.append(loss(rows))
            done = stop
    return np.stack(found, 1)


def taken(clients: Stack, algorithm: Algorithm, step: Step) -> Tensor:
    """The models of these clients after the step. A client that diverges stays at its start."""
    start = algorithm.adapt(clients) if step.start == "shared" else algorithm.local(clients).personal
    rows = train(clients, start, step.lr, step.epochs) if step.epochs else start
    return torch.where(rows.isfinite().all(1, keepdim=True), rows, start)


def train(clients: Stack, rows: Tensor, lr: float, epochs: int) -> Tensor:
    rate, count = torch.full_like(clients.lr, lr), torch.full_like(clients.epochs, epochs)
    return clients.train(rows, lr=rate, epochs=count, optimiser="sgd")
