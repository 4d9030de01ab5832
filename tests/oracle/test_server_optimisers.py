"""Methods that are FedAvg on the clients and differ on the server, against their papers' pseudo-code: one
client after the other, torch.optim.SGD, double precision; and the limits in which they are FedAvg.

Only the order of the examples is taken from the engine's random streams.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from federations import SETTINGS, Federation, data, linear, mlp, net, planned, task
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

import pagefl
from pagefl.algorithms.fedadam import FedAdam
from pagefl.algorithms.fedavg import FedAvg
from pagefl.algorithms.fedavgm import FedAvgM
from pagefl.algorithms.fedexp import FedExp
from pagefl.algorithms.fednova import FedNova
from pagefl.core import rng
from pagefl.core.algorithm import Algorithm
from pagefl.core.training.batches import draw
from pagefl.core.training.linear import LinearModel
from pagefl.core.training.model import StackedModel
from pagefl.core.training.stack import Training
from pagefl.core.uploaded import Here, Uploaded

SEED = 5
LR = [0.3, 0.05, 0.1, 0.5, 0.2]
EPOCHS = [4, 1, 3, 2, 7]
CLIENTS = [(x.double(), y) for x, y in map(data().train.client, range(5))]
SIZES = np.array([len(y) for _, y in CLIENTS])
# Who takes part, and with which weights: the data share, and what players may choose.
Rounds = list[tuple[list[int], np.ndarray]]
FULL: Rounds = [(list(range(5)), SIZES / SIZES.sum())] * 3
PLAYED: Rounds = [
    ([0, 2, 3], np.array([0.7, 0.1, 0.2])),
    ([1, 2, 4], np.array([0.5, 0.1, 0.4])),
    ([0, 1, 3], np.array([0.0, 0.6, 0.4])),
]
Expected = dict[str, Tensor]


class Locally:
    """Plain local training, from a model that is the vector of its parameters."""

    def __init__(self, module: nn.Module, momentum: float) -> None:
        self.module, self.momentum = module, momentum
        self.first = parameters_to_vector(module.parameters()).detach().clone()
        self.trained = [self.first] * len(CLIENTS)

    def train(self, start: Tensor, round: int, i: int) -> tuple[Tensor, int]:
        """The trained model, and the number of steps it took."""
        vector_to_parameters(start.clone(), self.module.parameters())
        optimizer = torch.optim.SGD(
            self.module.parameters(), LR[i], self.momentum, weight_decay=SETTINGS["weight_decay"]
        )
        x, y = CLIENTS[i]
        key = np.array([rng.key(SEED, "batches", round, 0, i)], np.uint64)
        places, counts, _ = draw(key, SIZES[i : i + 1], np.array(EPOCHS[i : i + 1]), SETTINGS["batch_size"])
        for batch, count in zip(places[0], counts[0], strict=True):
            chosen = torch.from_numpy(batch[:count]).long()
            optimizer.zero_grad()
            cross_entropy(self.module(x[chosen]), y[chosen]).backward()
            clip_grad_norm_(self.module.parameters(), SETTINGS["clip"])
            optimizer.step()
        self.trained[i] = parameters_to_vector(self.module.parameters()).detach().clone()
        return self.trained[i], len(counts[0])

    def state(self, **server: Tensor) -> Expected:
        named = {f"server.{name}": value for name, value in server.items()}
        return {**named, "clients.personal": torch.stack(self.trained)}


def fednova(locally: Locally, rounds: Rounds) -> Expected:
    """Wang et al. 2020, with the counter of the authors' program in place of the closed form of |a_i|."""
    model = locally.first
    for round, (ids, weights) in enumerate(rounds, 1):
        effective, normalised = 0.0, torch.zeros_like(model)
        for i, p in zip(ids, weights, strict=True):
            own, steps = locally.train(model, round, i)
            counter, length = 0.0, 0.0
            for _ in range(steps):
                counter = locally.momentum * counter + 1
                length += LR[i] * counter
            normalised += p * (model - own) / length
            effective += p * length
        model = model - effective * normalised
    return locally.state(model=model)


def updates(locally: Locally, model: Tensor, round: int, ids: list[int]) -> list[Tensor]:
    return [locally.train(model, round, i)[0] - model for i in ids]


def fedavgm(locally: Locally, rounds: Rounds, server_lr: float, server_momentum: float) -> Expected:
    """Hsu et al. 2019: v <- beta v + mean update, w <- w + v. Here by torch.optim.SGD."""
    model = nn.Parameter(locally.first.clone())
    server = torch.optim.SGD([model], server_lr, server_momentum)
    for round, (ids, weights) in enumerate(rounds, 1):
        moved = updates(locally, model.detach(), round, ids)
        model.grad = -sum(p * one for p, one in zip(weights, moved, strict=True))
        server.step()
    return locally.state(model=model.detach(), velocity=-server.state[model]["momentum_buffer"])


def fedadam(
    locally: Locally, rounds: Rounds, server_lr: float, beta1: float, beta2: float, tau: float
) -> Expected:
    """Reddi et al. 2021, Algorithm 2, FedAdam, number by number; v starts at tau²."""
    model = locally.first.clone()
    mean, square = torch.zeros_like(model), torch.full_like(model, tau**2)
    for round, (ids, weights) in enumerate(rounds, 1):
        moved = updates(locally, model.clone(), round, ids)
        for j in range(len(model)):
            delta = sum(p * float(one[j]) for p, one in zip(weights, moved, strict=True))
            mean[j] = beta1 * float(mean[j]) + (1 - beta1) * delta
            square[j] = beta2 * float(square[j]) + (1 - beta2) * delta**2
            model[j] += server_lr * float(mean[j]) / (float(square[j]) ** 0.5 + tau)
    return locally.state(model=model, mean=mean, square=square)


def fedexp(locally: Locally, rounds: Rounds, epsilon: float) -> Expected:
    """Jhunjhunwala et al. 2023, Algorithm 1, with weights as in the authors' program."""
    model, steps = locally.first, []
    for round, (ids, weights) in enumerate(rounds, 1):
        moved = updates(locally, model, round, ids)
        mean = sum(p * one for p, one in zip(weights, moved, strict=True))
        apart = sum(p * float(one @ one) for p, one in zip(weights, moved, strict=True))
        steps.append(max(1.0, apart / (2 * (float(mean @ mean) + epsilon))))
        model = model + steps[-1] * mean
    assert max(steps) > 1.1  # otherwise the test would be one of FedAvg
    return locally.state(model=model)


ADAM = {"server_lr": 0.3, "beta1": 0.6, "beta2": 0.8, "tau": 0.05}
CASES: dict[str, tuple[Callable[..., Expected], type[Algorithm], dict[str, float], float]] = {
    "fednova": (fednova, FedNova, {}, 0.0),
    "fednova, momentum": (fednova, FedNova, {}, 0.8),
    "fedavgm": (fedavgm, FedAvgM, {"server_lr": 0.7, "server_momentum": 0.6}, 0.0),
    "fedadam": (fedadam, FedAdam, ADAM, 0.0),
    "fedexp": (fedexp, FedExp, {"epsilon": 1e-3}, 0.0),
}
# Chunks differ so that a client is seen alone, beside another and among all.
PATHS = {
    "fused-linear": (LinearModel, linear, 5),
    "stacked-mlp": (StackedModel, mlp, 1),
    "plan-net": (planned, net, 2),
}


def fresh(make: Callable[[], nn.Module]) -> nn.Module:
    with rng.torch_stream(1, "module"):
        return make()


@pytest.mark.parametrize("rounds", [FULL, PLAYED], ids=["by data", "played"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", CASES)
def test_server_does_what_its_paper_says(name, path, rounds):
    oracle, algorithm, options, momentum = CASES[name]
    kind, make, chunk = PATHS[path]
    model, row = kind(fresh(make)), parameters_to_vector(fresh(make).parameters()).detach()
    training = Training(
        SEED, 0.1, SETTINGS["batch_size"], SETTINGS["weight_decay"], SETTINGS["clip"], momentum
    )
    federation = Federation.of_model(model, algorithm(**options), data(), training, row=row, chunk=chunk)
    for round, (ids, weights) in enumerate(rounds, 1):
        chosen = np.array(ids)
        federation.train(round, chosen, np.array(LR)[chosen], np.array(EPOCHS)[chosen])
        federation.aggregate(chosen, weights)

    expected = oracle(Locally(fresh(make).double(), momentum), rounds, **options)
    state = federation.state()
    assert state.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(
            state[key].double(), value, rtol=1e-4, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}"
        )


def assert_is_fedavg(algorithm: Algorithm, momentum: float = 0.0, **options: object) -> None:
    one, other = (
        pagefl.run(task=task("mlp", **options), algorithm=rule, momentum=momentum).state
        for rule in (algorithm, FedAvg())
    )
    for key in ("server.model", "clients.personal"):
        torch.testing.assert_close(one[key], other[key], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_with_equal_steps_is_fedavg(momentum):
    assert_is_fedavg(FedNova(), momentum, sizes=(9, 12, 10), single_class=None)  # three batches each


def test_fednova_with_unequal_steps_is_not():
    with pytest.raises(AssertionError, match="not close"):
        assert_is_fedavg(FedNova())


def test_fedavgm_without_momentum_is_fedavg():
    assert_is_fedavg(FedAvgM(server_momentum=0.0))


def test_fedadam_that_adapts_to_nothing_is_fedavg():
    """A large tau takes the place of the root of the squares."""
    assert_is_fedavg(FedAdam(server_lr=1e5, beta1=0.0, beta2=0.0, tau=1e5))


def test_fedexp_with_a_large_epsilon_is_fedavg():
    assert_is_fedavg(FedExp(epsilon=1e6))


def extrapolated(uploads: Tensor, weights: Tensor) -> Tensor:
    server = {"model": torch.zeros(uploads.shape[1])}
    sent = Here({"model": uploads, "squared": uploads.square().sum(1, keepdim=True)})
    uploaded = Uploaded(sent, np.arange(len(uploads)))
    return FedExp(epsilon=1e-12).aggregate(server, uploaded, weights, 1.0)["model"]


def test_fedexp_with_equal_uploads_is_fedavg():
    upload = torch.tensor([0.5, -2.0, 1.0])
    torch.testing.assert_close(extrapolated(upload.repeat(4, 1), torch.tensor([0.1, 0.2, 0.3, 0.4])), upload)


def test_fedexp_goes_to_half_the_sum_of_orthogonal_updates():
    """n of them, equally weighted: the step is n / 2."""
    torch.testing.assert_close(extrapolated(torch.eye(6), torch.full([6], 1 / 6)), torch.full([6], 0.5))


@pytest.mark.parametrize("seed", range(20))
def test_fedexp_never_steps_short_of_the_mean(seed):
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(8, generator=generator)  # some updates agree, some do not
    uploads = common * (seed / 10) + torch.randn(5, 8, generator=generator)
    weights = torch.rand(5, generator=generator).softmax(0)
    mean = weights @ uploads
    step = (extrapolated(uploads, weights) @ mean) / (mean @ mean)
    assert step >= 1 - 1e-6
