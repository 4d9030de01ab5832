"""A loss of the user's own, against a plain loop of torch in float64, and against runs without one."""

import copy
import sys
from functools import partial

import pytest
import torch
from federations import MODULES, SETTINGS, data
from torch import nn
from torch.nn.functional import cross_entropy

import pagefl
from pagefl import Task, cli
from pagefl.core import rng
from pagefl.data.source import ClientSource

WEIGHTS = torch.tensor([0.2, 1.0, 3.0, 0.5])


def weighted(logits, labels):
    return cross_entropy(logits, labels, WEIGHTS.to(logits), reduction="none")


def focal(logits, labels, gamma=2.0):
    chance = logits.softmax(1).gather(1, labels[:, None])[:, 0]
    return -((1 - chance) ** gamma) * chance.log()


smoothed = partial(cross_entropy, reduction="none", label_smoothing=0.2)
plain = partial(cross_entropy, reduction="none")
LOSSES = pytest.mark.parametrize("loss", [weighted, focal, smoothed], ids=["weighted", "focal", "smoothed"])


def task(loss=None, module="linear", **settings):
    return Task(
        "small", MODULES[module], data(), {**SETTINGS, "personal": {"when": "never"}, **settings}, loss
    )


def fresh(module: str) -> nn.Module:
    with rng.torch_stream(0, "initial model"):
        return MODULES[module]().double()


def plain_fedavg(module: nn.Module, loss, rounds: int, lr: float, epochs: int) -> nn.Module:
    """Whole clients as batches: their order does not matter."""
    splits = data()
    sizes = splits.train.sizes.double()
    for _ in range(rounds):
        total = [torch.zeros_like(p) for p in module.parameters()]
        for i, size in enumerate(sizes):
            x, y = splits.train.client(i)
            own = copy.deepcopy(module)
            optimizer = torch.optim.SGD(own.parameters(), lr)
            for _ in range(epochs):
                optimizer.zero_grad()
                loss(own(x.double()), y).mean().backward()
                optimizer.step()
            for sum_, p in zip(total, own.parameters(), strict=True):
                sum_ += p.detach() * float(size / sizes.sum())
        for p, sum_ in zip(module.parameters(), total, strict=True):
            p.data = sum_
    return module


@LOSSES
@pytest.mark.parametrize(("path", "module"), [("auto", "linear"), ("rows", "linear"), ("stacked", "mlp")])
def test_training_is_that_of_a_plain_loop(loss, path, module):
    whole = {"batch_size": 64, "clip": float("inf"), "weight_decay": 0.0}
    run = pagefl.run(task=task(loss, module, **whole), path=path, epochs=3, rounds=2)
    truth = plain_fedavg(fresh(module), loss, 2, 0.3, 3)
    for ours, theirs in zip(run.model.parameters(), truth.parameters(), strict=True):
        assert torch.allclose(ours.double(), theirs, atol=1e-5)
    test = data().server_test
    with torch.no_grad():
        expected = float(loss(truth(test.x.double()), test.y).mean())
    assert run.rounds[-1]["global_loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("module", ["linear", "mlp"])
def test_it_is_what_is_measured_and_rewarded(module):
    run = pagefl.run(task=task(focal, module), players="page", rounds=2)
    splits, last = data(), run.client_rounds[-1]
    with torch.no_grad():
        for i in range(len(splits.train)):
            x, y = splits.train.client(i)
            expected = float(focal(run.personal(i)(x), y).mean())
            assert last["train_loss"][i] == pytest.approx(expected, rel=1e-4)
            assert last["reward"][i] == pytest.approx(1 / last["train_loss"][i], rel=1e-3)


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("stacked", {"players": "page-shared", "personal": {"when": "end"}}),  # objective, effects, tries
        ("stacked", {"players": "page", "holdout": 0.3}),
        ("stacked", {"optimiser": "deltasgd"}),
        ("stacked", {"algorithm": {"name": "fedala", "tolerance": 10.0}}),
        ("stacked", {"algorithm": "fedrod"}),
        ("stacked", {"algorithm": "perfedavg"}),
        ("rows", {"algorithm": "fedrod"}),
    ],
    ids=str,
)
def test_cross_entropy_is_no_other_loss(path, options):
    """Breaks where a loss of one's own is not asked."""
    without, with_it, other = (
        pagefl.run(task=task(loss, "mlp"), path=path, rounds=2, **options) for loss in (None, plain, weighted)
    )
    last, same = without.rounds[-1], with_it.rounds[-1]
    assert same["global_loss"] == pytest.approx(last["global_loss"], rel=1e-4)
    assert other.rounds[-1]["global_loss"] != pytest.approx(last["global_loss"], rel=1e-2)
    for key, rows in without.state.items():
        assert torch.allclose(rows, with_it.state[key], atol=1e-4, rtol=1e-3), key


def test_workers_and_a_resume_do_not_matter(tmp_path):
    whole = pagefl.run(task=task(focal, "mlp"), rounds=3)
    pagefl.run(task=task(focal, "mlp"), rounds=2, workers=2, out=tmp_path / "run")
    resumed = pagefl.resume(tmp_path / "run", task=task(focal, "mlp"), rounds=3)
    assert torch.equal(resumed.state["server.model"], whole.state["server.model"])
    assert resumed.path.endswith("since the task has a loss of its own")


@pytest.mark.parametrize(
    ("first", "then", "sentence"),
    [
        (focal, None, "made with a loss of the task's own; give it again"),
        (None, focal, "made with the cross entropy; resume with the same task without a loss"),
        (focal, partial(focal, gamma=2.1), "returns other losses than the one"),
    ],
)
def test_a_checkpoint_belongs_to_its_loss(first, then, sentence, tmp_path):
    pagefl.run(task=task(first), rounds=1, out=tmp_path / "run")
    with pytest.raises(pagefl.UserError, match=sentence):
        pagefl.resume(tmp_path / "run", task=task(then), rounds=2)


def test_a_deployment_refuses_it_before_anything_starts(tmp_path, monkeypatch, capsys):
    """It knows tasks by their names alone."""
    pagefl.run(task=task(focal), rounds=1, out=tmp_path / "run")
    spec, out = tmp_path / "run/spec.toml", tmp_path / "deployed"
    monkeypatch.setattr(sys, "argv", ["pagefl", "deploy", "local", str(spec), "--out", str(out)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    assert "a task or a loss of your own runs by pagefl.run" in capsys.readouterr().err
    assert not out.exists()


class Far(ClientSource):
    clients = 5

    def client(self, number):
        splits = data()
        return splits.train.client(number), splits.test.client(number)

    def server(self):
        return data().server_test.x, data().server_test.y


def test_clients_that_are_fetched():
    settings = {**SETTINGS, "personal": {"when": "never"}}
    near = pagefl.run(task=task(weighted, "mlp"), path="stacked", rounds=1)
    far = Task("small", MODULES["mlp"], Far(), settings, weighted)
    run = pagefl.run(task=far, path="stacked", rounds=1)
    assert torch.allclose(run.state["server.model"], near.state["server.model"], atol=1e-5)


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (cross_entropy, r"loss\(\) returned shape \[\] for 4 examples; expected the loss of each, \[4\]"),
        (lambda logits, labels: labels * 1.0, "has no gradient"),
        (lambda logits, labels: -plain(logits, labels), "expected finite losses of at least 0"),
        (lambda logits, labels: plain(logits, labels) * float("nan"), "expected finite losses"),
        (lambda logits, labels: plain(logits, labels) / len(labels), "another loss for the same example"),
        (lambda logits, labels: plain(logits + torch.randn(4), labels), "another loss for the same"),
        (lambda logits: logits.sum(1), r"loss\(\) failed: TypeError"),
    ],
)
def test_what_is_no_loss_is_refused(loss, sentence):
    with pytest.raises(pagefl.UserError, match=sentence):
        pagefl.run(task=task(loss), rounds=1)


def test_paths_that_cannot_take_it_are_refused():
    for path in ("fused", "plan"):
        with pytest.raises(pagefl.UserError, match=f"path = {path}: the task has a loss of its own"):
            pagefl.run(task=task(focal), path=path)
    with pytest.raises(pagefl.UserError, match="loss is a str; expected a function"):
        task("focal")
