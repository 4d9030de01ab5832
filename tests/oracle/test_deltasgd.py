"""The optimiser deltasgd against Algorithm 1 of its paper: one client after the other, plain torch, double
precision.

The loop over rounds and clients is that of test_algorithms.py. The gradient of a client's objective is a
function of its model, with all that an algorithm adds to the loss.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy as np
import pytest
import torch
from federations import SETTINGS, Federation, data, linear, mlp, net, planned, task
from oracle.test_algorithms import (
    EPOCHS,
    FULL,
    MEAN_SIZE,
    PARTIAL,
    SEED,
    SIZES,
    Expected,
    N,
    Rounds,
    average,
    batches,
    fresh,
    gradient,
    step,
)
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

import pagefl
from pagefl import Algorithm, FederatedData, Task, UserError
from pagefl.algorithms import ALGORITHMS
from pagefl.algorithms.ditto import Ditto
from pagefl.algorithms.fedavg import FedAvg
from pagefl.algorithms.feddyn import FedDyn
from pagefl.algorithms.fednova import FedNova
from pagefl.algorithms.fedprox import FedProx
from pagefl.algorithms.scaffold import Scaffold
from pagefl.core.training.linear import LinearModel
from pagefl.core.training.model import RowModel, StackedModel
from pagefl.core.training.stack import Training

pytestmark = pytest.mark.xdist_group("oracle of deltasgd")
LR = [3.0, 0.05, 2.0, 5.0, 0.2]  # some far too long, so that either bound decides in some steps
GAMMA, DELTA, DECAY = 2.0, 0.1, SETTINGS["weight_decay"]
Batches = Iterable[tuple[Tensor, Tensor]]


class Client:
    """Trains one model after the other, and remembers which of the two bounds decided a step's size."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.decided: Counter[str] = Counter()
        self.examples = 0  # of which gradients were taken

    def gradient(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        self.examples += len(y)
        return gradient(self.module, w, x, y)

    def train(
        self, w: Tensor, own: Batches, lr: float, added: Callable[[Tensor], Tensor | float] = lambda w: 0.0
    ) -> tuple[Tensor, float]:
        """The model, and the sum of its step sizes. `added`: to the gradient, besides weight decay."""
        eta, theta, length, before = lr, 1.0, 0.0, None
        for x, y in own:
            direction = self.gradient(w, x, y) + added(w)
            if before is not None:
                there = self.gradient(before, x, y) + added(before)
                turn = float(((direction + DECAY * w) - (there + DECAY * before)).norm())
                bounds = {
                    "curvature": GAMMA * float((w - before).norm()) / (2 * turn),
                    "growth": math.sqrt(1 + DELTA * theta) * eta,
                }
                smaller = min(bounds, key=bounds.__getitem__)
                self.decided[smaller] += 1
                eta, theta = bounds[smaller], bounds[smaller] / eta
            before, w = w, step(w, direction, eta)
            length += eta
        return w, length


def fedavg(client: Client, first: Tensor, rounds: Rounds) -> Expected:
    return fedprox(client, first, rounds, mu=0.0)


def fedprox(client: Client, first: Tensor, rounds: Rounds, mu: float) -> Expected:
    server, personal = first, [first] * N
    for round, ids in enumerate(rounds, 1):
        for i in ids:
            pull = partial(lambda server, w: mu * (w - server), server)
            personal[i], _ = client.train(server, batches(round, i, EPOCHS[i]), LR[i], pull)
        server = average(personal, ids)
    return {"server.model": server, "clients.personal": torch.stack(personal)}


def feddyn(client: Client, first: Tensor, rounds: Rounds, alpha: float) -> Expected:
    server, personal, moved = first, [first] * N, [torch.zeros_like(first)] * N
    for round, ids in enumerate(rounds, 1):
        for i in ids:
            alpha_i = alpha / (SIZES[i] / MEAN_SIZE)
            pull = partial(lambda a, server, own, w: a * (w - server + own), alpha_i, server, moved[i])
            personal[i], _ = client.train(server, batches(round, i, EPOCHS[i]), LR[i], pull)
            moved[i] = moved[i] + personal[i] - server
        server = average(personal, ids) + sum(moved) / N
    return {
        "server.model": server,
        "server.moved": sum(moved) / N,
        "kept.moved": torch.stack(moved),
        "clients.personal": torch.stack(personal),
    }


def scaffold(client: Client, first: Tensor, rounds: Rounds) -> Expected:
    """A control variate is the mean gradient, each step's counted by its size."""
    server, personal = first, [first] * N
    control, controls = torch.zeros_like(first), [torch.zeros_like(first)] * N
    for round, ids in enumerate(rounds, 1):
        change = torch.zeros_like(first)
        for i in ids:
            correction = control - controls[i]
            fixed = partial(lambda correction, w: correction, correction)
            personal[i], length = client.train(server, batches(round, i, EPOCHS[i]), LR[i], fixed)
            new = (server - personal[i]) / length - correction
            change += SIZES[i] / MEAN_SIZE * (new - controls[i])
            controls[i] = new
        server, control = average(personal, ids), control + change / N
    return {
        "server.model": server,
        "server.control": control,
        "kept.control": torch.stack(controls),
        "clients.personal": torch.stack(personal),
    }


def fednova(client: Client, first: Tensor, rounds: Rounds) -> Expected:
    server, personal = first, [first] * N
    for round, ids in enumerate(rounds, 1):
        lengths = {}
        for i in ids:
            personal[i], lengths[i] = client.train(server, batches(round, i, EPOCHS[i]), LR[i])
        p = {i: SIZES[i] / sum(SIZES[j] for j in ids) for i in ids}
        mean = sum(p[i] * lengths[i] for i in ids)
        server = server + mean * sum(p[i] * (personal[i] - server) / lengths[i] for i in ids)
    return {"server.model": server, "clients.personal": torch.stack(personal)}


def ditto(client: Client, first: Tensor, rounds: Rounds, lam: float, personal_epochs: int) -> Expected:
    server, uploads, personal = first, [first] * N, [first] * N
    for round, ids in enumerate(rounds, 1):
        for i in ids:
            uploads[i], _ = client.train(server, batches(round, i, EPOCHS[i]), LR[i])
            pull = partial(lambda server, w: lam * (w - server), server)
            own = batches(round, i, personal_epochs, call=1)
            personal[i], _ = client.train(personal[i], own, LR[i], pull)
        server = average(uploads, ids)
    both = torch.stack(personal)
    return {"server.model": server, "kept.personal": both, "clients.personal": both}


ORACLES: dict[str, tuple[Callable[..., Expected], type[Algorithm], dict[str, float]]] = {
    "fedavg": (fedavg, FedAvg, {}),
    "fedprox": (fedprox, FedProx, {"mu": 0.5}),
    "feddyn": (feddyn, FedDyn, {"alpha": 0.3}),
    "scaffold": (scaffold, Scaffold, {}),
    "fednova": (fednova, FedNova, {}),
    "ditto": (ditto, Ditto, {"lam": 0.7, "personal_epochs": 3}),
}
# Chunks differ so that a client is seen alone, beside another and among all.
PATHS = {
    "fused-linear": (LinearModel, linear, 5),
    "stacked-mlp": (StackedModel, mlp, 2),
    "plan-net": (planned, net, 2),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ORACLES)
def test_training_is_what_the_paper_says(name, path):
    oracle, algorithm, options = ORACLES[name]
    kind, make, chunk = PATHS[path]
    rounds = PARTIAL if name == "scaffold" else FULL[:2]
    model = kind(fresh(make))
    training = Training(SEED, 0.1, SETTINGS["batch_size"], DECAY, SETTINGS["clip"], optimiser="deltasgd")
    row = model.layout.row(fresh(make))
    federation = Federation.of_model(model, algorithm(**options), data(), training, row=row, chunk=chunk)
    examples = 0
    for round, ids in enumerate(rounds, 1):
        chosen = np.array(ids)
        done = federation.train(round, chosen, np.array(LR)[chosen], np.array(EPOCHS)[chosen])
        examples += done.gradients
        sizes = np.array(SIZES)[chosen]
        federation.aggregate(chosen, sizes / sizes.sum())

    module = fresh(make).double()
    client = Client(module)
    expected = oracle(client, parameters_to_vector(module.parameters()).detach().clone(), rounds, **options)
    assert min(client.decided["curvature"], client.decided["growth"]) > 10  # otherwise one is not tested
    assert examples == client.examples
    state = federation.state()
    assert state.keys() == expected.keys()
    for key, value in expected.items():
        # Differences of near gradients lose digits in float32.
        torch.testing.assert_close(
            state[key].double(), value, rtol=1e-3, atol=1e-4, msg=lambda text, key=key: f"{key}: {text}"
        )
