"""FedAvg against a plain loop over clients with torch.optim.SGD, on unequal sizes, epochs and learning rates."""

import copy

import numpy as np
import pytest
import torch
from federations import SETTINGS, Federation, data, linear, mlp
from torch import nn

from pagefl import FederatedData
from pagefl.algorithms.fedavg import FedAvg
from pagefl.core import rng
from pagefl.core.layout import Layout
from pagefl.core.training.batches import draw
from pagefl.core.training.linear import LinearModel
from pagefl.core.training.model import Model, RowModel, StackedModel
from pagefl.core.training.stack import Training
from pagefl.models.lstm import lstm
from pagefl.models.resnet import resnet18

LR = np.array([0.3, 0.05, 0.1, 0.5, 0.2])
EPOCHS = np.array([4, 1, 3, 2, 7])
SEED, ROUNDS = 5, 3
PATHS = [(LinearModel, linear), (StackedModel, linear), (RowModel, linear), (StackedModel, mlp), (RowModel, mlp)]


def plain_fedavg(module: nn.Module, splits: FederatedData, rounds: int = ROUNDS) -> nn.Module:
    """As anybody would write it. Only the order of the examples is taken from the engine's random stream."""
    sizes = splits.train.sizes.double()
    for round in range(1, rounds + 1):
        total = [torch.zeros_like(p) for p in module.parameters()]
        for i in range(len(sizes)):
            x, y = splits.train.client(i)
            own = copy.deepcopy(module)
            optimizer = torch.optim.SGD(own.parameters(), lr=LR[i], weight_decay=SETTINGS["weight_decay"])
            key = np.array([rng.key(SEED, "batches", round, 0, i)], np.uint64)
            index, counts, _ = draw(key, np.array([len(y)]), EPOCHS[i : i + 1], SETTINGS["batch_size"])
            for batch, count in zip(index[0], counts[0], strict=True):
                chosen = torch.from_numpy(batch[:count]).long()
                optimizer.zero_grad()
                nn.functional.cross_entropy(own(x[chosen]), y[chosen]).backward()
                nn.utils.clip_grad_norm_(own.parameters(), SETTINGS["clip"])
                optimizer.step()
            for sum_, p in zip(total, own.parameters(), strict=True):
                sum_ += p.detach() * float(sizes[i] / sizes.sum())
        for p, sum_ in zip(module.parameters(), total, strict=True):
            p.data = sum_
    return module


@pytest.mark.parametrize(("path", "make"), PATHS)
@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_fedavg_is_plain_sgd_and_an_average(path, make, chunk):
    with rng.torch_stream(1, "module"):
        module = make()
    expected = plain_fedavg(copy.deepcopy(module), data())

    got = engine_fedavg(path(module), data(), chunk)
    torch.testing.assert_close(got, Layout(module).row(expected), rtol=1e-5, atol=1e-6)


def engine_fedavg(model: Model, splits: FederatedData, chunk: int, rounds: int = ROUNDS) -> torch.Tensor:
    training = Training(SEED, 0.1, SETTINGS["batch_size"], SETTINGS["weight_decay"], SETTINGS["clip"])
    federation = Federation.of_model(model, FedAvg(), splits, training, row=model.layout.row(model.module), chunk=chunk)
    sizes = splits.train.sizes.numpy()
    everybody = np.arange(len(sizes))
    for round in range(1, rounds + 1):
        federation.train(round, everybody, LR[everybody], EPOCHS[everybody])
        federation.aggregate(everybody, sizes / sizes.sum())
    return federation.shared["model"]


def pictures(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, 3, 32, 32), generator=chance, dtype=torch.uint8), torch.randint(
        0, 5, (n,), generator=chance
    )


def texts(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    return torch.randint(0, 80, (n, 12), generator=chance, dtype=torch.uint8), torch.randint(0, 80, (n,), generator=chance)


@pytest.mark.parametrize(
    ("path", "make", "draw_client"),
    [
        (RowModel, lambda: resnet18(5, width=4), pictures),
        (StackedModel, lambda: resnet18(5, width=4), pictures),
        (RowModel, lambda: resnet18(5, stem="small", width=2), pictures),
        (RowModel, lambda: lstm(hidden=7), texts),
    ],
)
def test_large_models_on_bytes(path, make, draw_client):
    splits = FederatedData([draw_client(n, n) for n in (5, 9)], [draw_client(2, 1)] * 2, draw_client(4, 3))
    with rng.torch_stream(1, "module"):
        module = make()
    expected = plain_fedavg(copy.deepcopy(module), splits, rounds=1)
    torch.testing.assert_close(
        engine_fedavg(path(module), splits, chunk=2, rounds=1), Layout(module).row(expected), rtol=1e-4, atol=1e-5
    )


def test_batches_are_fresh_shuffles_of_everything():
    index, counts, steps = draw(np.arange(2, dtype=np.uint64), np.array([7, 3]), np.array([3, 2]), 4)
    assert steps.tolist() == [6, 2]
    assert counts.tolist() == [[4, 3, 4, 3, 4, 3], [3, 3, 0, 0, 0, 0]]
    epochs = [np.concatenate([index[0, 2 * e, :4], index[0, 2 * e + 1, :3]]) for e in range(3)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_shuffles_are_uniform():
    draws = draw(np.arange(24_000, dtype=np.uint64), np.full(24_000, 4), np.ones(24_000, np.int64), 4).positions[:, 0]
    orders, counts = np.unique(draws, axis=0, return_counts=True)
    assert len(orders) == 24
    assert abs(counts - 1000).max() < 150  # 4.8 standard deviations
