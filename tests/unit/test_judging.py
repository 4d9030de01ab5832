"""What is evaluated in a round: what somebody asked for, and nothing else."""

import numpy as np
import pytest
import torch
from federations import task

import pagefl
from pagefl import UserError
from pagefl.core.clients import ClientHalf
from pagefl.core.server import ServerHalf
from pagefl.core.training.model import Model

ACCURACIES = ["global_accuracy", "global_loss", "local_accuracy", "local_accuracy_before", "local_loss"]


def test_accuracies_every_third_round_and_in_the_last(tmp_path):
    whole = pagefl.run(task=task(), rounds=8)
    run = pagefl.run(task=task(), rounds=8, judge_every=3, out=tmp_path / "run")
    assert run.history.judged.tolist() == [round in (3, 6, 8) for round in range(1, 9)]
    for name in [*ACCURACIES, "local_std", "local_worst10"]:
        known = run.history[name].notna()
        assert known.tolist() == run.history.judged.tolist(), name
        assert run.history[name][known].tolist() == whole.history[name][known].tolist(), name
    assert torch.equal(run.state["server.model"], whole.state["server.model"])
    assert pagefl.load(tmp_path / "run", task=task()).history.equals(run.history)
    assert run.clients[run.clients["round"] == 2].local_accuracy.isna().all()


def test_agents_learn_the_same_whatever_is_judged():
    runs = [pagefl.run(task=task(), players="page", rounds=6, judge_every=k) for k in (1, 4)]
    assert all(torch.equal(value, runs[1].state[name]) for name, value in runs[0].state.items())
    assert runs[0].history.reward_server.tolist() == runs[1].history.reward_server.tolist()


@pytest.mark.parametrize("players", ["fixed", "random", "page"])
def test_rewards_are_computed_for_those_who_learn_by_them(players, monkeypatch):
    asked = []
    train, server = ClientHalf.train, ServerHalf.evaluate

    def watched(self, *args, **options):
        asked.append(options["roles"])
        return train(self, *args, **options)

    def looked(self, round, *roles):
        asked.append(roles)
        return server(self, round, *roles)

    monkeypatch.setattr(ClientHalf, "train", watched)
    monkeypatch.setattr(ServerHalf, "evaluate", looked)
    run = pagefl.run(task=task(), players=players, rounds=1)
    learning = players == "page"
    assert asked == [("test", "reward")[: 1 + learning], ("server_test", "game")[: 1 + learning]]
    rewards = run.history[["reward_server", "reward_clients", "payoffs_server", "train_loss", "game_loss"]]
    assert rewards.notna().all(axis=None) == learning
    assert rewards.isna().all(axis=None) != learning


def test_a_run_that_stops_at_an_equilibrium_has_rewards():
    run = pagefl.run(task=task(), rounds=2, stop="equilibrium")
    assert run.history.reward_clients.notna().all()


def test_of_many_clients_those_who_train_and_a_sample_are_judged():
    many = pagefl.Task("many", task().module, many_clients(130))
    run = pagefl.run(task=many, rounds=2, participation=0.1)
    judged = run.clients.assign(known=run.clients.local_accuracy_before.notna())
    samples = []
    for _, part in judged.groupby("round"):
        assert part[part.trained].known.all()
        assert 100 <= part.known.sum() <= 113
        samples.append(set(part[part.known].client))
    assert len(samples[0] & samples[1]) >= 100  # the same ones in both
    assert run.history.local_accuracy.notna().all()


def test_only_those_who_take_part_look_at_the_model(monkeypatch):
    """A state is what a client sees of the model on its own data; nobody else needs it."""
    scored = []
    score = Model.score
    monkeypatch.setattr(Model, "score", lambda self, *args: scored.append(len(args[2])) or score(self, *args))
    pagefl.run(task=task("mlp"), players="page", rounds=2, participation=0.4, judge_every=2, workers=1)
    # meet: five clients on both splits; round 1: two states, then two rewards; the game half
    assert scored[:2] == [5, 5]
    assert max(scored[2:6]) == 2


def many_clients(count: int):
    chance = np.random.default_rng(0)
    pairs = [(chance.normal(size=(6, 6)), chance.integers(0, 4, 6)) for _ in range(count)]
    return pagefl.FederatedData(pairs, pairs, pairs[0])


def test_a_look_is_shorter_for_large_models():
    from pagefl.runtime import halves
    from pagefl.runtime.settings import Settings

    small = task()
    wide = pagefl.Task(
        "wide",
        lambda: torch.nn.Sequential(torch.nn.Linear(6, 20_000), torch.nn.Linear(20_000, 4)),
        small.data,
    )
    assert looks(halves, small, Settings(), 60) == 30  # all of the game half
    assert looks(halves, small, Settings(look=7), 60) == 7
    assert looks(halves, small, Settings(), 12_000) == 4000
    assert looks(halves, wide, Settings(), 12_000) == 500


def looks(halves, of, settings, size: int) -> int:
    from pagefl.algorithms.fedavg import FedAvg

    server = pagefl.FederatedData(
        [of.data.train.client(0)],
        [of.data.test.client(0)],
        (torch.zeros(size, 6), torch.zeros(size, dtype=torch.long)),
    )
    begin = halves.start(of.fresh_module(settings.seed), FedAvg(), settings, server.train)
    return len(halves.server_half(begin, server.of_server, 1).samples["game"].y)


def test_an_equilibrium_needs_every_round():
    with pytest.raises(UserError, match="judge_every = 5: a run that stops at an equilibrium"):
        pagefl.run(task=task(), rounds=9, stop="equilibrium", judge_every=5)


def test_a_report_draws_the_rounds_that_were_judged():
    from pagefl.reports import charts
    from pagefl.runtime import numbers

    run = pagefl.run(task=task(), rounds=9, judge_every=2)
    drawn = charts.columns(numbers.of_rounds(run.rounds, "run"), 1)
    assert drawn["round"] == [2, 4, 6, 8, 9]
    assert None not in drawn["global_accuracy"]


def test_absent_clients_count_by_their_last_model():
    """Also by one that they trained in a round without measurements."""
    whole, some = (pagefl.run(task=task(), rounds=6, participation=0.4, judge_every=k) for k in (1, 3))
    known = some.history.judged
    assert some.history.local_accuracy[known].tolist() == whole.history.local_accuracy[known].tolist()
