"""The optimiser deltasgd against Algorithm 1 of its paper: one client after the other, plain torch, double
precision.

The loop over rounds and clients is that of test_algorithms.py. The gradient of a client's objective is a
function of its model, with all that an algorithm adds to the loss.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
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
from unit.test_options import noise, stack

import pagefl
from pagefl import Algorithm, Local, UserError
from pagefl.algorithms.ditto import Ditto
from pagefl.algorithms.fedavg import FedAvg
from pagefl.algorithms.feddyn import FedDyn
from pagefl.algorithms.fednova import FedNova
from pagefl.algorithms.fedprox import FedProx
from pagefl.algorithms.scaffold import Scaffold
from pagefl.core import personal
from pagefl.core.layout import Layout
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


def module_rows(module: nn.Module) -> Tensor:
    layout = Layout(module)
    return layout.row(module) + 0.1 * noise("rows", 3, layout.width)


class Noisy(nn.Module):
    """Drops some of its inputs, and remembers which."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.seen = linear(), []

    def forward(self, x: Tensor) -> Tensor:
        kept = torch.rand(x.shape[-1]) < 0.5 if self.training else torch.ones(x.shape[-1], dtype=torch.bool)
        self.seen.append(kept)
        return self.inner(x * kept)


def test_both_gradients_see_the_same_dropout():
    module = Noisy()
    clients = stack(RowModel(module), optimiser="deltasgd")
    clients.train(module_rows(module), epochs=torch.tensor([2, 0, 0]))
    masks = [tuple(mask.tolist()) for mask in module.seen]
    first, pairs = masks[0], list(zip(masks[1::2], masks[2::2], strict=True))
    assert len(pairs) == 3
    assert all(there == here for there, here in pairs)
    assert len({first, *(here for _, here in pairs)}) > 1


@pytest.mark.parametrize(
    "options", [{"lr": torch.zeros(3)}, {"direction": lambda rows, gradient, who: torch.zeros_like(rows)}]
)
def test_a_model_that_does_not_move_stays_finite(options):
    module = linear()
    rows = module_rows(module)
    still = stack(LinearModel(module), optimiser="deltasgd")
    still.training = still.training._replace(weight_decay=0.0)
    done = still.descend(rows, **options)
    assert torch.equal(done.rows, rows)
    assert done.length.isfinite().all()


def test_the_personal_step_is_plain_sgd():
    module = mlp()
    rows = module_rows(module)
    ours, plain = (
        personal.train(stack(StackedModel(module), optimiser=name), rows, 2.0, 3)
        for name in ("deltasgd", "sgd")
    )
    assert torch.equal(ours, plain)
    assert not torch.allclose(ours, stack(StackedModel(module), optimiser="deltasgd").train(rows), atol=1e-2)


@pytest.mark.parametrize("module", ["linear", "net"])
def test_neither_workers_nor_a_resume_change_a_bit(module, tmp_path):
    settings = {"optimiser": "deltasgd", "algorithm": Scaffold(), "lr": 3.0}
    straight = pagefl.run(task=task(module), rounds=3, **settings)
    pagefl.run(task=task(module), rounds=2, out=tmp_path / "run", **settings)
    again = pagefl.resume(tmp_path / "run", task=task(module), algorithm=Scaffold(), rounds=3)
    shared = pagefl.run(task=task(module), rounds=3, workers=2, **settings)
    plain = pagefl.run(task=task(module), rounds=3, **{**settings, "optimiser": "sgd"})
    for other in (again, shared):
        assert all(torch.equal(value, other.state[name]) for name, value in straight.state.items())
    assert not torch.allclose(straight.state["server.model"], plain.state["server.model"], atol=1e-2)


class OwnSteps(Algorithm):
    def local(self, clients):
        w = clients.sgd(clients.sent["model"])
        return Local(upload={"model": w.rows}, personal=w.rows)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"momentum": 0.9}, "it should go with momentum = 0, not 0"),
        (
            {"algorithm": "apfl"},
            "optimiser = deltasgd: algorithm Apfl needs sgd, since its steps are its own",
        ),
        ({"algorithm": "perfedavg"}, "algorithm PerFedAvg needs sgd"),
        ({"algorithm": {"name": "scaffold", "bounded": True}}, "algorithm Scaffold needs sgd, since bounded"),
        ({"algorithm": OwnSteps()}, "optimiser = deltasgd: clients.sgd makes steps of an algorithm's own"),
    ],
)
def test_what_does_not_go_together_is_refused_before_the_first_round(settings, words, tmp_path):
    with pytest.raises(UserError, match=words):
        pagefl.run(task=task(), optimiser="deltasgd", rounds=1, out=tmp_path / "run", **settings)
    assert not (tmp_path / "run" / "rounds.jsonl").exists()


def test_an_algorithm_that_asks_for_it_in_a_run_with_momentum_is_refused():
    with pytest.raises(UserError, match="the optimiser deltasgd has none"):
        stack(LinearModel(linear()), 0.9).train(module_rows(linear()), optimiser="deltasgd")
