"""The personal step against a plain loop over clients: which step is chosen, and the models that it makes."""

import copy
from functools import partial

import federations
import numpy as np
import pytest
import torch
from federations import CLASSES, FEATURES, SETTINGS, client
from torch import nn

import pagefl
from pagefl import FederatedData, Task
from pagefl.core import rng
from pagefl.core.layout import Layout
from pagefl.core.training.batches import draw

ROUNDS, STOPS = 2, (1, 2, 4)
task = partial(federations.task, personal="end")


def sgd(module, x, y, lr, epochs, key):
    """Plain SGD from this module, with the engine's order of examples."""
    own = copy.deepcopy(module)
    optimizer = torch.optim.SGD(own.parameters(), lr, weight_decay=SETTINGS["weight_decay"])
    keys = np.array([rng.key(0, *key)], np.uint64)
    index, counts, _ = draw(keys, np.array([len(y)]), np.array([epochs]), SETTINGS["batch_size"])
    for batch, count in zip(index[0], counts[0], strict=True):
        chosen = torch.from_numpy(batch[:count]).long()
        optimizer.zero_grad()
        nn.functional.cross_entropy(own(x[chosen]), y[chosen]).backward()
        nn.utils.clip_grad_norm_(own.parameters(), SETTINGS["clip"])
        optimizer.step()
    return own


def holdout_losses(shared, splits, lr, epochs):
    """[clients, choices]: no step, FedAvg's own model, and every rate and number of epochs."""
    found = np.zeros((len(splits.train), 2 + 5 * len(STOPS)))
    for i in range(len(splits.train)):
        x, y = splits.train.client(i)
        order = torch.from_numpy(rng.stream(0, "personal hold-out", i).permutation(len(y)))
        fit, held = order[: -max(1, round(len(y) / 4))], order[-max(1, round(len(y) / 4)) :]
        stream = ("personal try batches", ROUNDS)
        models = [shared, sgd(shared, x[fit], y[fit], lr, epochs, (*stream, 0, i))]
        count = 1
        for rate in (lr / 10, lr / 3, lr, lr * 3, lr * 10):
            own = shared
            for more in np.diff([0, *STOPS]).tolist():
                own = sgd(own, x[fit], y[fit], rate, more, (*stream, count, i))
                models.append(own)
                count += 1
        with torch.no_grad():
            found[i] = [float(nn.functional.cross_entropy(own(x[held]), y[held])) for own in models]
    return found


@pytest.mark.parametrize("lr", [0.003, 0.3, 20.0])
def test_the_step_is_that_of_a_plain_loop(lr):
    run = pagefl.run(task=task(), rounds=ROUNDS, lr=lr)
    shared, splits = run.model, task().data
    means = holdout_losses(shared, splits, lr, SETTINGS["epochs"]).mean(0)
    rates = [lr / 10, lr / 3, lr, lr * 3, lr * 10]
    named = [
        ("shared", 0.0, 0),
        ("own", 0.0, 0),
        *(("shared", rate, stop) for rate in rates for stop in STOPS),
    ]
    best = named[int(means.argmin())]
    step = run.rounds[-1]["personal_step"]
    assert (step["start"], step["epochs"]) == (best[0], best[2])
    assert step["lr"] == pytest.approx(best[1])
    hits = []
    for i in range(len(splits.train)):
        x, y = splits.train.client(i)
        key = ("personal take batches", ROUNDS, 0, i)
        own = shared
        if best[0] == "own":
            own = sgd(shared, x, y, lr, SETTINGS["epochs"], key)
        elif best[2]:
            own = sgd(shared, x, y, 0.75 * best[1], best[2], key)
        row = Layout(own).row(own)
        torch.testing.assert_close(run.state["clients.stepped"][i], row, rtol=1e-4, atol=1e-5)
        x, y = splits.test.client(i)
        hits.append(float((own(x).argmax(1) == y).double().mean()))
    assert run.rounds[-1]["personal_accuracy"] == pytest.approx(np.mean(hits), abs=1e-9)


def test_a_wrong_learning_rate_is_mended_by_the_step():
    """Ten times too small, and ten times too large."""
    for lr in (0.03, 3.0):
        run = pagefl.run(task=task(), rounds=ROUNDS, lr=lr)
        losses = holdout_losses(run.model, task().data, lr, SETTINGS["epochs"]).mean(0)
        assert losses.min() < losses[1]  # better than the model that local training made


def test_gradients_are_counted():
    """FedAvg evaluates every example once an epoch; Ditto trains a second model beside it."""
    sizes, epochs = task().data.train.sizes, SETTINGS["epochs"]
    fit = int((sizes - (sizes / 4).round().clamp(min=1)).sum())
    everything = int(sizes.sum())
    fedavg = pagefl.run(task=task(), rounds=3)
    assert fedavg.history.gradients.tolist() == [everything * epochs * round for round in (1, 2, 3)]
    last = fedavg.rounds[-1]
    step = last["personal_step"]
    taken = everything * (epochs if step["start"] == "own" else step["epochs"])
    assert last["gradients_personal"] == fit * (epochs + 5 * 4) + taken
    ditto = pagefl.run(task=task(), algorithm={"name": "ditto", "personal_epochs": 3}, rounds=2)
    assert ditto.history.gradients.tolist() == [everything * (epochs + 3) * round for round in (1, 2)]
    pfedme = pagefl.run(task=task(), algorithm={"name": "pfedme", "inner_steps": 2}, rounds=1)
    assert pfedme.history.gradients.tolist() == [everything * epochs * 2]


def texts(flip=False):
    """Clients whose last examples have other labels: what a hold-out at the end must notice."""
    train = [client(24, i) for i in range(4)]
    for _, y in train:
        y[18:] = (y[18:] + 1) % CLASSES
    return FederatedData(train, [client(8, 50 + i) for i in range(4)], client(40, 90), in_order=flip)


def test_overlapping_examples_are_held_out_at_the_end():
    def run(in_order):
        made = Task("texts", lambda: nn.Linear(FEATURES, CLASSES), texts(in_order), SETTINGS)
        return pagefl.run(task=made, rounds=1, epochs=1)

    found = {in_order: run(in_order).rounds[-1] for in_order in (False, True)}
    # On ends that contradict the beginnings, training on the beginnings does not help.
    assert found[True]["personal_step"]["epochs"] == 0
    assert found[False]["personal_step"]["epochs"] > 0
