"""A client whose result is not finite is left out of its round, as if it were absent; the others go on."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from federations import QUICK, task

import pagefl
from pagefl.algorithms import ALGORITHMS
from pagefl.runtime import checkpoint

POISONED = 3  # the size of the client that goes wrong


def poisoned(name: str, sizes: tuple[int, ...] = (POISONED,), round: int = 1):
    """The algorithm, with clients of these sizes that diverge in one round."""

    class Poisoned(ALGORITHMS[name]):
        def local(self, clients):
            outcome = super().local(clients)
            if clients.round != round:  # the real stack knows its round
                return outcome
            bad = torch.isin(clients.facts.sizes, torch.tensor(sizes))[:, None]

            def spoil(state):
                return {key: torch.where(bad, torch.nan, value) for key, value in state.items()}

            personal = torch.where(bad, torch.inf, outcome.personal)
            return replace(outcome, upload=spoil(outcome.upload), kept=spoil(outcome.kept), personal=personal)

    return Poisoned(**QUICK.get(name, {}))


@pytest.mark.parametrize(("name", "workers"), [*((name, 1) for name in ALGORITHMS), ("scaffold", 2)])
def test_the_round_goes_on_with_the_others(name, workers):
    of = task("mlp", sizes=(POISONED, 9, 12, 5, 7))
    run = pagefl.run(task=of, algorithm=poisoned(name), rounds=3, workers=workers)
    assert [entry["quarantined"] for entry in run.rounds] == [1, 0, 0]
    assert [entry["participants"] for entry in run.rounds] == [4, 5, 5]
    assert run.clients.query("round == 1").trained.tolist() == [False, True, True, True, True]
    assert all(bool(torch.isfinite(tensor).all()) for tensor in run.state.values())
    assert all(np.isfinite(entry["global_loss"]) for entry in run.rounds)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "ditto"])
def test_quarantine_is_absence(name, monkeypatch):
    """The round is that of a federation whose other four clients were drawn."""
    bad = pagefl.run(task=task("mlp"), algorithm=poisoned(name), rounds=1)
    monkeypatch.setattr(
        "pagefl.core.server.ServerHalf.participants", lambda self, round, share: np.array([1, 2, 3, 4])
    )
    absent = pagefl.run(task=task("mlp"), algorithm=ALGORITHMS[name](**QUICK.get(name, {})), rounds=1)
    for key, value in bad.state.items():
        torch.testing.assert_close(value, absent.state[key], rtol=1e-5, atol=1e-6)


def test_all_bad_ends_in_a_sentence_and_keeps_the_last_good_state(tmp_path):
    straight = pagefl.run(task=task("mlp"), algorithm="scaffold", rounds=2, personal={"when": "never"})
    broken = poisoned("scaffold", sizes=(3, 17, 40, 25, 9), round=3)
    with pytest.raises(
        pagefl.UserError, match=r"round 3: 5 clients \(0, 1, 2, 3, 4\) uploaded values that are not finite"
    ):
        pagefl.run(task=task("mlp"), algorithm=broken, rounds=9, out=tmp_path / "run")
    tensors, facts = checkpoint.read(tmp_path / "run" / "checkpoint")
    assert facts["round"] == 2
    for key, value in straight.state.items():
        assert torch.equal(tensors[key], value), key


def test_stop_when_told_to():
    with pytest.raises(pagefl.UserError, match="round 1: client 0 uploaded"):
        pagefl.run(task=task("mlp"), algorithm=poisoned("fedavg"), on_bad_upload="stop")


def test_a_server_state_that_is_not_finite_is_not_the_clients_fault(tmp_path):
    class Broken(ALGORITHMS["scaffold"]):
        def aggregate(self, server, uploads, weights, share):
            made = super().aggregate(server, uploads, weights, share)
            rounds.append(1)
            return made if len(rounds) < 3 else {**made, "control": made["control"] / 0}

    rounds: list[int] = []
    out = tmp_path / "run"
    with pytest.raises(pagefl.UserError, match="round 3: `aggregate` of Broken made `control` not finite"):
        pagefl.run(task=task("mlp"), algorithm=Broken(), rounds=9, checkpoint_seconds=0.0, out=out)
    tensors, facts = checkpoint.read(out / "checkpoint")
    straight = pagefl.run(task=task("mlp"), algorithm="scaffold", rounds=2, personal={"when": "never"})
    assert facts["round"] == 2
    for key, value in straight.state.items():
        assert torch.equal(tensors[key], value), key
