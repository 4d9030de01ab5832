"""FedAvg against a plain loop over clients with torch.optim.SGD: unequal sizes, epochs and learning rates."""

import copy
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from federations import PATHS, SETTINGS, Federation, data, linear, mlp, net, planned
from torch import nn

import pagefl
from pagefl import FederatedData, Task
from pagefl.algorithms.fedavg import FedAvg
from pagefl.core import rng
from pagefl.core.layout import Layout
from pagefl.core.training.batches import draw
from pagefl.core.training.model import Model, RowModel, StackedModel
from pagefl.core.training.stack import Training
from pagefl.models.lstm import lstm
from pagefl.models.resnet import resnet18

SEED = 5


class Plan(NamedTuple):
    """What everybody does: a learning rate and a number of epochs for each client."""

    lr: tuple[float, ...]
    epochs: tuple[int, ...]
    rounds: int
    clip: float = SETTINGS["clip"]
    weight_decay: float = SETTINGS["weight_decay"]
    batch_size: int = SETTINGS["batch_size"]
    momentum: float = 0.0
    lr_decay: float = 1.0


def plain_fedavg(module: nn.Module, splits: FederatedData, plan: Plan) -> torch.Tensor:
    """As anybody would write it, in the precision of the module.

    Only the order of the examples is that of the engine.
    """
    module = copy.deepcopy(module)
    dtype = next(module.parameters()).dtype
    sizes = splits.train.sizes.double()
    for round in range(1, plan.rounds + 1):
        total = [torch.zeros_like(p) for p in module.parameters()]
        for i in range(len(sizes)):
            x, y = splits.train.client(i)
            x = x.to(dtype) if x.is_floating_point() else x
            own = copy.deepcopy(module)
            lr = plan.lr[i] * plan.lr_decay ** (round - 1)
            optimizer = torch.optim.SGD(own.parameters(), lr, plan.momentum, weight_decay=plan.weight_decay)
            key = np.array([rng.key(SEED, "batches", round, 0, i)], np.uint64)
            index, counts, _ = draw(
                key, np.array([len(y)]), np.array(plan.epochs[i : i + 1]), plan.batch_size
            )
            for batch, count in zip(index[0], counts[0], strict=True):
                chosen = torch.from_numpy(batch[:count]).long()
                optimizer.zero_grad()
                nn.functional.cross_entropy(own(x[chosen]), y[chosen]).backward()
                nn.utils.clip_grad_norm_(own.parameters(), plan.clip)
                optimizer.step()
            for sum_, p in zip(total, own.parameters(), strict=True):
                sum_ += p.detach() * float(sizes[i] / sizes.sum())
        for p, sum_ in zip(module.parameters(), total, strict=True):
            p.data = sum_
    return Layout(module).row(module).double()


def engine_fedavg(model: Model, splits: FederatedData, plan: Plan, chunk: int) -> torch.Tensor:
    training = Training(SEED, 0.1, plan.batch_size, plan.weight_decay, plan.clip)
    federation = Federation.of_model(
        model, FedAvg(), splits, training, row=model.layout.row(model.module), chunk=chunk
    )
    sizes = splits.train.sizes.numpy()
    everybody = np.arange(len(sizes))
    for round in range(1, plan.rounds + 1):
        federation.train(round, everybody, np.array(plan.lr), np.array(plan.epochs))
        federation.aggregate(everybody, sizes / sizes.sum())
    return federation.shared["model"].double()


def fresh(make: Callable[[], nn.Module]) -> nn.Module:
    with rng.torch_stream(1, "module"):
        return make()


def assert_no_farther_than_torch(
    ours: torch.Tensor, module: nn.Module, splits: FederatedData, plan: Plan
) -> None:
    """Every CPU and thread count rounds in its own way, so two float32 results are never compared with each
    other.

    The plain loop in float64 is the truth. Ours may be a few times as far from it as the same loop in
    float32, plus a thousandth of the distance that the model moved: a learning rate that is wrong by one per
    cent is ten times as far.
    """
    first = Layout(module).row(module).double()
    truth = plain_fedavg(copy.deepcopy(module).double(), splits, plan)
    error = (ours - truth).norm()
    moved = (truth - first).norm()
    allowed = 4 * (plain_fedavg(module, splits, plan) - truth).norm() + 1e-3 * moved
    assert error <= allowed < 1e-2 * moved, (error, allowed, moved)


@pytest.mark.parametrize(("path", "make"), PATHS)
@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_fedavg_is_plain_sgd_and_an_average(path, make, chunk):
    plan = Plan(lr=(0.3, 0.05, 0.1, 0.5, 0.2), epochs=(4, 1, 3, 2, 7), rounds=3)
    ours = engine_fedavg(path(fresh(make)), data(), plan, chunk)
    assert_no_farther_than_torch(ours, fresh(make), data(), plan)


def pictures(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, 3, 32, 32), generator=chance, dtype=torch.uint8), torch.randint(
        0, 5, (n,), generator=chance
    )


def texts(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    return torch.randint(0, 80, (n, 12), generator=chance, dtype=torch.uint8), torch.randint(
        0, 80, (n,), generator=chance
    )


@pytest.mark.parametrize(
    ("path", "make", "draw_client"),
    [
        (RowModel, lambda: resnet18(5, width=4), pictures),
        (StackedModel, lambda: resnet18(5, width=4), pictures),
        (RowModel, lambda: resnet18(5, stem="small", width=2), pictures),
        (RowModel, lambda: lstm(hidden=7), texts),
        (planned, lambda: resnet18(5, width=4), pictures),
        (planned, lambda: resnet18(5, stem="small", width=2), pictures),
    ],
)
def test_large_models_on_bytes(path, make, draw_client):
    """Short steps, and few: a narrow net with GroupNorm amplifies rounding with every long one."""
    splits = FederatedData([draw_client(n, n) for n in (5, 9)], [draw_client(2, 1)] * 2, draw_client(4, 3))
    plan = Plan(lr=(0.05, 0.02), epochs=(1, 2), rounds=1, clip=0.3)
    assert_no_farther_than_torch(
        engine_fedavg(path(fresh(make)), splits, plan, chunk=2), fresh(make), splits, plan
    )


def test_batches_are_fresh_shuffles_of_everything():
    index, counts, steps = draw(np.arange(2, dtype=np.uint64), np.array([7, 3]), np.array([3, 2]), 4)
    assert steps.tolist() == [6, 2]
    assert counts.tolist() == [[4, 3, 4, 3, 4, 3], [3, 3, 0, 0, 0, 0]]
    epochs = [np.concatenate([index[0, 2 * e, :4], index[0, 2 * e + 1, :3]]) for e in range(3)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_shuffles_are_uniform():
    draws = draw(
        np.arange(24_000, dtype=np.uint64), np.full(24_000, 4), np.ones(24_000, np.int64), 4
    ).positions[:, 0]
    orders, counts = np.unique(draws, axis=0, return_counts=True)
    assert len(orders) == 24
    assert abs(counts - 1000).max() < 150  # 4.8 standard deviations


@pytest.mark.parametrize(
    "settings", [{"lr_decay": 0.5}, {"momentum": 0.9}, {"lr_decay": 0.5, "momentum": 0.9}]
)
@pytest.mark.parametrize("make", [linear, mlp, net])
def test_decay_and_momentum_of_a_run(make, settings):
    """The rate is halved after every round; the momentum starts anew in each."""
    module, splits = fresh(make), data()
    run = pagefl.run(task=Task("own", module, splits, SETTINGS), rounds=3, seed=SEED, **settings)
    plan = Plan((SETTINGS["lr"],) * 5, (SETTINGS["epochs"],) * 5, 3, **settings)
    assert_no_farther_than_torch(run.state["server.model"].double(), module, splits, plan)
    falling = [SETTINGS["lr"] * settings.get("lr_decay", 1.0) ** round for round in range(3)]
    assert run.history.mean_lr.tolist() == pytest.approx(falling)
