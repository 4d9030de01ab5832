"""The real data sets, where there are any: below PAGEFL_DATA, or packed in a folder `shared/data` beside the
repository.
"""

import functools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import pagefl
from pagefl import Task
from pagefl.algorithms import ALGORITHMS
from pagefl.data import patches, shakespeare
from pagefl.data.cifar100 import CIFAR100
from pagefl.data.shakespeare import SHAKESPEARE
from pagefl.data.tiny_imagenet import TINY_IMAGENET
from pagefl.experiments.defaults import NICKNAMES
from pagefl.experiments.tasks import BUILDERS

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("real data")]  # unpacked and read once
UNPACK = Path(__file__).parents[3] / "shared" / "data" / "unpack"


@pytest.fixture(scope="module", autouse=True)
def root(tmp_path_factory):
    folder = os.environ.get("PAGEFL_DATA")
    if not folder:
        if not UNPACK.exists():
            pytest.skip("PAGEFL_DATA is not set")
        folder = str(tmp_path_factory.mktemp("data"))
        subprocess.run([UNPACK, folder, sys.executable], check=True, capture_output=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAGEFL_DATA", folder)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def test_cifar100_is_whole():
    assert CIFAR100.check()[1] == "train, test: md5 as published"
    arrays = CIFAR100.load()
    assert arrays["train.y"].bincount().tolist() == [500] * 100
    assert arrays["test.y"].bincount().tolist() == [100] * 100
    means = arrays["train.x"].float().mean((0, 2, 3)) / 255  # as is known of it
    assert means.tolist() == pytest.approx([0.5071, 0.4865, 0.4409], abs=1e-4)


def test_tiny_imagenet_has_two_hundred_classes():
    arrays = TINY_IMAGENET.load()
    for part in ("train", "test"):
        assert arrays[f"{part}.y"].unique().tolist() == list(range(200))
        assert arrays[f"{part}.x"].shape[1:] == (3, 64, 64)


def test_shakespeare_has_the_users_and_samples_of_leaf():
    arrays = SHAKESPEARE.load()
    samples = arrays["starts"].diff() - shakespeare.LENGTH
    assert len(samples) == 1129
    assert int(samples.sum()) == 4_226_158
    assert int(arrays["text"].max()) < 80


def test_a_role_is_trained_and_tested_on_different_words():
    data = BUILDERS["shakespeare"](seed=0, clients=3).data
    assert data.train.sizes.tolist() == [4900] * 3
    assert data.test.sizes.tolist() == [2100] * 3
    assert len(data.game.y) + len(data.server_test.y) == 3000
    for i in range(3):
        seen = {bytes(window) for window in data.train.client(i)[0].numpy()}
        assert not seen & {bytes(window) for window in data.test.client(i)[0].numpy()}


def test_an_image_federation_has_the_papers_sizes():
    data = BUILDERS["cifar100"](seed=1, clients=100).data
    assert data.train.sizes.tolist() == [350] * 100
    assert data.test.sizes.tolist() == [150] * 100
    assert len(data.game.y) == len(data.server_test.y) == 5000
    assert data.train.x.dtype == torch.uint8
    # nobody has another's image, and everything is dealt
    images = np.concatenate([data.train.x.flatten(1).numpy(), data.test.x.flatten(1).numpy()])
    whole = CIFAR100.load()["train.x"].flatten(1).numpy()
    assert sorted(map(bytes, images)) == sorted(map(bytes, whole))


def test_pfllibs_benchmark_divides_all_images():
    data = BUILDERS["cifar100-cnn"](seed=0).data
    sizes = data.train.sizes + data.test.sizes
    assert len(sizes) == 20
    assert int(sizes.sum()) + len(data.game.y) == 60_000
    assert len(data.train.y) == pytest.approx(45_000, abs=20)
    assert torch.equal(data.server_test.x, data.test.x)


def test_patch_features_tell_real_images_apart(monkeypatch):
    """With few filters, which are fitted in seconds: a class is nearer to its own mean than to others'."""
    monkeypatch.setattr(patches, "FILTERS", 20)
    data = BUILDERS["cifar100-patches"](seed=0, clients=10, features=32).data
    assert len(data.game.y) == len(data.server_test.y) == 5000
    means = torch.stack([data.game.x[data.game.y == label].mean(0) for label in range(100)])
    nearest = torch.cdist(data.server_test.x, means).argmin(1)
    assert (nearest == data.server_test.y).float().mean() > 0.05  # chance is 0.01


@pytest.mark.parametrize("task", ["shakespeare-mlp", "cifar100-resnet"])
def test_models_for_laptops_are_planned(task):
    run = pagefl.run(
        task={"name": task, "clients": 2, "per_client": 20}, rounds=1, path="plan", participation=1
    )
    assert 0 < run.rounds[-1]["local_loss"] < 10


def loss(module: nn.Module, pair: tuple[torch.Tensor, torch.Tensor]) -> float:
    with torch.no_grad():
        return nn.functional.cross_entropy(module.eval()(pair[0]), pair[1]).item()


@functools.cache
def untrained(task: str) -> Task:
    return BUILDERS[task](seed=0, clients=2, per_client=20)


SMALL = ["cifar100-small", "tiny-imagenet-small", "shakespeare-small"]
# every algorithm on one task, and one algorithm on every task
METHODS = [*ALGORITHMS, *NICKNAMES]
LEARNS = [(SMALL[i % 3], method) for i, method in enumerate(METHODS)] + [
    (task, METHODS[0]) for task in SMALL[1:]
]


@pytest.mark.parametrize(("task", "algorithm"), LEARNS)
def test_every_real_task_runs_and_learns(task, algorithm):
    """After one epoch every client's own model fits its own training data better, and the shared model fits
    all of them.
    """
    options = {"name": task, "clients": 2, "per_client": 20}
    # a run that may stop at an equilibrium has rewards, and so the training loss
    common = {"rounds": 1, "epochs": 1, "seed": 0, "stop": "equilibrium"}
    personal = {} if algorithm in NICKNAMES else {"personal": {"when": "never"}}
    run = pagefl.run(task=options, algorithm=algorithm, **common, **personal)
    run.state.pop("clients.stepped", None)  # what local training makes
    train, first = untrained(task).data.train, untrained(task).fresh_module(0)

    losses = [loss(run.personal(i), train.client(i)) for i in range(2)]
    assert all(own < loss(first, train.client(i)) for i, own in enumerate(losses)), losses
    assert run.rounds[-1]["train_loss"] == pytest.approx(np.mean(losses), rel=1e-3)
    before, after = (loss(module, (train.x, train.y)) for module in (first, run.model))
    if algorithm == "local":  # nothing is shared
        assert after == before
    elif algorithm == "fedrod":  # its shared model minimises the balanced softmax loss instead
        assert after != before
    else:
        assert after < before
