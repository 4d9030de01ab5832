"""Augmentation belongs to the training stream: by (seed, round, client), whoever trains beside it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from federations import QUICK, SETTINGS
from torch import nn

import pagefl
from pagefl import FederatedData, Task
from pagefl.data.augment import crop_and_flip


def test_crop_and_flip_is_what_a_loop_over_images_does():
    chance = np.random.default_rng(0)
    x = chance.integers(0, 256, (2, 50, 3, 8, 8)).astype(np.uint8)
    chances = chance.random((2, 50, 4))
    got = crop_and_flip(torch.from_numpy(x), torch.from_numpy(chances)).numpy()
    seen = set()
    for image, (down, right, mirrored, _), result in zip(
        x.reshape(-1, 3, 8, 8), chances.reshape(-1, 4), got.reshape(-1, 3, 8, 8), strict=True
    ):
        top, left = int(down * 9), int(right * 9)
        frame = np.zeros((3, 16, 16), np.uint8)
        frame[:, 4:12, 4:12] = image
        cut = frame[:, top : top + 8, left : left + 8]
        assert np.array_equal(result, cut[:, :, ::-1] if mirrored >= 0.5 else cut)
        seen.add((top, left, mirrored >= 0.5))
    assert {top for top, _, _ in seen} == {left for _, left, _ in seen} == set(range(9))


def pictures(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    return torch.rand(n, 3, 8, 8, generator=chance), torch.randint(0, 4, (n,), generator=chance)


def run(augment=crop_and_flip, hidden: bool = True, clients: int = 5, **options):
    parts = [pictures(n, n) for n in (3, 17, 8, 11, 9)[:clients]]
    data = FederatedData(parts, [pictures(4, 1)] * clients, pictures(10, 2), augment=augment)

    def module() -> nn.Module:
        layers = [nn.Linear(192, 6), nn.ReLU(), nn.Linear(6, 4)] if hidden else [nn.Linear(192, 4)]
        return nn.Sequential(nn.Flatten(), *layers)

    task = Task("pictures", module, data, {**SETTINGS, "rounds": 2, "personal": {"when": "never"}})
    return pagefl.run(task=task, **{"algorithm": "fedavg", **options})


@pytest.mark.parametrize("path", ["plan", "stacked", "rows"])
def test_workers_and_chunks_do_not_show(path):
    whole = run(path=path)
    assert not torch.equal(whole.state["server.model"], run(augment=None, path=path).state["server.model"])
    assert torch.equal(whole.state["server.model"], run(path=path, workers=2).state["server.model"])
    torch.testing.assert_close(whole.state["server.model"], run(path=path, chunk=1).state["server.model"])


def test_a_client_is_augmented_alike_whoever_else_there_is():
    alone, beside = run(clients=2, rounds=1, path="rows"), run(clients=5, rounds=1, path="rows")
    torch.testing.assert_close(alone.state["clients.personal"][:2], beside.state["clients.personal"][:2])


def test_a_linear_model_is_augmented_too():
    fused, rows = run(hidden=False), run(hidden=False, path="rows")
    torch.testing.assert_close(fused.state["server.model"], rows.state["server.model"], rtol=1e-4, atol=1e-6)
    assert not torch.equal(fused.state["server.model"], run(augment=None, hidden=False).state["server.model"])


def test_a_holdout_leaves_augmentation_in_place():
    data = FederatedData([pictures(20, 1)] * 2, [pictures(4, 1)] * 2, pictures(10, 2), augment=crop_and_flip)
    split = data.hold_out(0.2, seed=0)
    assert split.train.augment is crop_and_flip
    assert split.holdout is not None
    assert split.holdout.augment is None
    assert replace(split.train, x=split.train.x).augment is crop_and_flip


@pytest.mark.parametrize("algorithm", ["scaffold", "ditto", "fedala", "fedrecon"])
def test_methods_that_look_at_batches_twice(algorithm):
    options = {"algorithm": {"name": algorithm, **QUICK.get(algorithm, {})}}
    assert torch.equal(run(**options).state["server.model"], run(**options, workers=2).state["server.model"])
