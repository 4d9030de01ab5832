"""The personal step: when it is taken, what it leaves alone, and that workers do not change it."""

from functools import partial

import federations
import numpy as np
import pytest
import torch
from federations import CLASSES, FEATURES, SETTINGS, client, trained_part
from torch import nn

import pagefl
from pagefl import FederatedData, Task, UserError
from pagefl.algorithms.ditto import Ditto
from pagefl.algorithms.fedavg import FedAvg
from pagefl.core import personal
from pagefl.core.personal import Step
from pagefl.runtime.settings import Settings
from pagefl.runtime.simulation import simulate

STEPPED = "clients.stepped"
task = partial(federations.task, personal="end")


def known(run):
    return run.history["round"][run.history.personal_accuracy.notna()].tolist()


@pytest.mark.parametrize(
    ("when", "judge_every", "rounds"),
    [("end", 1, [7]), ("never", 1, []), (2, 1, [2, 4, 6, 7]), (2, 3, [6, 7]), (1, 3, [3, 6, 7])],
)
def test_when_it_is_taken(when, judge_every, rounds):
    run = pagefl.run(task=task(), rounds=7, judge_every=judge_every, personal={"when": when})
    assert known(run) == rounds
    assert (STEPPED in run.state) == bool(rounds)
    spent = run.history.gradients_personal
    assert (spent.diff().fillna(spent[0]) > 0).tolist() == [r in rounds for r in range(1, 8)]


@pytest.mark.parametrize("algorithm", ["fedavg", "ditto", "scaffold", "fedala"])
def test_training_is_not_affected(algorithm):
    plain, often = (
        pagefl.run(task=task(), algorithm=algorithm, rounds=4, personal={"when": when})
        for when in ("never", 1)
    )
    for name, value in plain.state.items():
        assert torch.equal(value, often.state[name]), name
    assert plain.history.local_accuracy.tolist() == often.history.local_accuracy.tolist()


def test_the_client_gets_the_model_of_the_step():
    run = pagefl.run(task=task(), rounds=2)
    x, y = task().data.test.client(1)
    accuracy = float((run.personal(1)(x).argmax(1) == y).double().mean())
    assert run.clients.query("round == 2 and client == 1").personal_accuracy.item() == pytest.approx(accuracy)
    assert torch.equal(
        torch.nn.utils.parameters_to_vector(run.personal(1).parameters()), run.state[STEPPED][1]
    )
    assert run.history.personal_worst10.iloc[-1] <= run.history.personal_accuracy.iloc[-1]


@pytest.mark.parametrize("module", ["linear", "net"])
def test_same_bits_for_workers_and_any_client_block(module):
    one, two = (pagefl.run(task=task(module), rounds=2, workers=workers) for workers in (1, 2))
    assert one.rounds[-1]["personal_step"] == two.rounds[-1]["personal_step"]
    assert all(torch.equal(value, two.state[name]) for name, value in one.state.items())
    small = pagefl.run(task=task(module), rounds=2, chunk=2)
    torch.testing.assert_close(small.state[STEPPED], one.state[STEPPED], rtol=1e-4, atol=1e-5)


def test_no_test_label_reaches_it():
    """Neither the choice nor the models."""
    for holdout in (0.0, 0.3):
        clean, noisy = (
            pagefl.run(task=task(flip=flip), rounds=3, personal={"when": 1}, holdout=holdout)
            for flip in (False, True)
        )
        assert [r["personal_step"] for r in clean.rounds] == [r["personal_step"] for r in noisy.rounds]
        other = trained_part(noisy.state)
        assert all(torch.equal(value, other[name]) for name, value in trained_part(clean.state).items())
        assert clean.history.personal_accuracy.tolist() != noisy.history.personal_accuracy.tolist()


def test_a_run_that_goes_on_forgets_an_older_step(tmp_path):
    short = pagefl.run(task=task(), rounds=2, out=tmp_path / "run")
    assert known(short) == [2]
    longer = pagefl.resume(tmp_path / "run", task=task(), rounds=4)
    whole = pagefl.run(task=task(), rounds=4)
    assert known(longer) == [2, 4]
    assert all(torch.equal(value, longer.state[name]) for name, value in whole.state.items())
    assert longer.history.gradients.tolist() == whole.history.gradients.tolist()
    loaded = pagefl.load(tmp_path / "run", task=task())
    assert torch.equal(loaded.state[STEPPED], whole.state[STEPPED])


def test_the_algorithms_own_model_is_a_choice_only_if_the_hold_out_is_new_to_it():
    """Ditto's personal model has been trained on the step's hold-out in earlier rounds."""

    def losses(algorithm, holdout):
        made = simulate(task(), algorithm, Settings(**SETTINGS, holdout=holdout))
        return made.clients.try_steps(1, 0.3, 2).losses

    own = 1
    assert not np.isnan(losses(FedAvg(), 0.0)).any()
    assert np.isnan(losses(Ditto(), 0.0)[:, own]).all()
    assert not np.isnan(losses(Ditto(), 0.3)).any()


def test_a_client_with_one_example_has_no_say():
    data = FederatedData([client(1, 0), client(20, 1)], [client(5, 2), client(5, 3)], client(20, 4))
    run = pagefl.run(task=Task("two", lambda: nn.Linear(FEATURES, CLASSES), data, SETTINGS), rounds=2)
    assert known(run) == [2]
    found = np.array([[np.nan] * 17, [3.0] + [2.0] * 16])
    assert personal.choose(found, 0.1, 1) == Step("own")


def test_choosing():
    steps = personal.choices(0.1, 20)
    assert [step.epochs for step in steps[2:8]] == [1, 2, 4, 8, 16, 20]
    losses = np.ones((3, len(steps)))
    assert personal.choose(losses, 0.1, 20) == Step("shared")  # of equals, the cheapest
    losses[:, 5] = 0.5
    losses[1, 5] = personal.WORST  # it diverged on one client
    losses[:, 4] = 0.9
    assert personal.choose(losses, 0.1, 20) == steps[4]
    assert personal.choose(np.full((3, len(steps)), np.nan), 0.1, 20) == Step("shared")


def test_a_client_that_diverges_stays_at_its_start():
    x, y = client(20, 1)
    data = FederatedData([client(20, 0), (x * 1e18, y)], [client(5, 2), client(5, 3)], client(20, 4))
    made = Task("two", lambda: nn.Linear(FEATURES, CLASSES), data, SETTINGS)
    run = pagefl.run(task=made, rounds=1, clip=1e30, lr=1e-6)
    assert bool(run.state[STEPPED].isfinite().all())


@pytest.mark.parametrize("when", [0, -1, "often", 1.5, True])
def test_bad_settings(when):
    with pytest.raises(UserError, match=r"personal\.when"):
        pagefl.run(task=task(), rounds=1, personal={"when": when})
