"""Private runs: what is counted, when they end, how they go on, and what they refuse."""

import json
import logging
from functools import cache

import dp_accounting
import numpy as np
import pytest
import torch
from federations import FEATURES, linear, task

import pagefl
from pagefl import FederatedData, Task
from pagefl.core.errors import UserError
from pagefl.experiments import spec as specs
from pagefl.runtime import checkpoint, loop
from pagefl.runtime.settings import Settings
from pagefl.trust.privacy.accounting import Account
from pagefl.trust.privacy.randomness import Simulated

PRIVATE = {"epsilon": 30.0, "noise": 1.2, "clip": 0.5, "accountant": "rdp"}
COMMON = {"task": {"name": "synthetic", "clients": 12}, "epochs": 1, "participation": 0.3, "workers": 1}
ALL = {"participation": 1.0}  # rounds of everybody are the quickest to account for


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("absl").setLevel(logging.ERROR)


def run(rounds=4, privacy=PRIVATE, **settings):
    return pagefl.run(**{**COMMON, "rounds": rounds, "privacy": privacy, **settings})


@cache
def of_dp_accounting(rounds: int, noise=1.2, share=0.3, delta=1e-5) -> list[float]:
    """Epsilon after each round, by an accountant that is told of every one of them."""
    event = dp_accounting.PoissonSampledDpEvent(share, dp_accounting.GaussianDpEvent(noise))
    accountant, spent = dp_accounting.rdp.RdpAccountant(), []
    for _ in range(rounds):
        spent.append(accountant.compose(event).get_epsilon(delta))
    return spent


def check_every_round_is_counted(privacy=PRIVATE) -> None:
    spent = [entry["epsilon"] for entry in run(privacy=privacy).rounds]
    assert spent == pytest.approx(of_dp_accounting(4), rel=1e-9)


@pytest.mark.parametrize("adaptive", [0.0, 0.5])
def test_every_round_is_counted(adaptive):
    clients = {"name": "synthetic", "clients": 100} if adaptive else COMMON["task"]
    found = run(privacy={**PRIVATE, "adaptive": adaptive}, task=clients)
    assert [entry["epsilon"] for entry in found.rounds] == pytest.approx(of_dp_accounting(4), rel=1e-9)
    assert {entry["noise"] for entry in found.rounds} == {"simulated"}
    clips = [entry["clip"] for entry in found.rounds]
    assert clips[0] == 0.5
    assert len(set(clips)) == (4 if adaptive else 1)


def test_a_round_that_is_not_counted_is_seen(monkeypatch):
    right = Account.epsilon
    for bug in (lambda own, rounds: right(own, rounds - 1), lambda own, rounds: right(own, 1)):
        monkeypatch.setattr(Account, "epsilon", bug)
        with pytest.raises(AssertionError):
            check_every_round_is_counted()
    monkeypatch.setattr(Account, "epsilon", right)
    check_every_round_is_counted()


def test_a_round_without_participants_has_noise_and_costs_as_much():
    found = run(rounds=8, task={"name": "synthetic", "clients": 3}, participation=0.2)
    empty = [entry for entry in found.rounds if entry["participants"] == 0]
    assert len(empty) > 2
    assert [entry["epsilon"] for entry in found.rounds] == pytest.approx(of_dp_accounting(8, share=0.2))
    losses = [entry["global_loss"] for entry in found.rounds]
    assert len(set(losses)) == len(losses)  # the model moves in every round


def test_the_noise_that_is_solved_plays_all_rounds_and_is_written_down(tmp_path):
    found = run(privacy={"epsilon": 3.0, "accountant": "rdp"}, out=tmp_path / "run", **ALL)
    noise = specs.read(tmp_path / "run" / "spec.toml")["privacy"]["noise"]
    assert len(found.rounds) == 4
    assert 2.95 < found.rounds[-1]["epsilon"] <= 3.0
    assert of_dp_accounting(4, noise, 1.0)[-1] == pytest.approx(found.rounds[-1]["epsilon"])
    # going on, the noise is what it was: the budget is spent
    said = []
    more = pagefl.resume(tmp_path / "run", rounds=9, say=said.append)
    assert specs.read(tmp_path / "run" / "spec.toml")["privacy"]["noise"] == noise
    assert (len(more.rounds), more.over) == (4, True)
    assert said[-1].startswith("privacy.epsilon = 3: the run ends after round 4, at epsilon = 2.9")


def test_a_run_ends_before_its_budget_would_be_passed(tmp_path):
    spent = of_dp_accounting(8, share=1.0)
    private = {**PRIVATE, "epsilon": (spent[4] + spent[5]) / 2}
    said = []
    found = run(50, private, out=tmp_path / "run", judge_every=20, say=said.append, **ALL)
    assert [entry["epsilon"] for entry in found.rounds] == pytest.approx(spent[:5])
    assert found.over
    assert "ends after round 5" in said[-1]
    assert "since round 6" in said[-1]
    assert found.rounds[-1]["judged"]  # the last round is measured, though nobody set it
    assert checkpoint.read_facts(tmp_path / "run" / "checkpoint")["epsilon"] == found.rounds[-1]["epsilon"]


def test_a_longer_run_goes_on_until_the_budget_is_spent(tmp_path):
    spent = of_dp_accounting(8, share=1.0)
    private = {**PRIVATE, "epsilon": (spent[4] + spent[5]) / 2}
    run(3, private, out=tmp_path / "run", **ALL)
    more = pagefl.resume(tmp_path / "run", rounds=40)
    assert [entry["epsilon"] for entry in more.rounds] == pytest.approx(spent[:5])


def records(found) -> str:
    return json.dumps([{**entry, "seconds": 0} for entry in found.rounds])


def test_a_resumed_run_is_the_undisturbed_one_and_spends_the_same(tmp_path):
    private, clients = {**PRIVATE, "adaptive": 0.5}, {"name": "synthetic", "clients": 100}
    whole = run(6, private, task=clients, out=tmp_path / "whole")

    class Killed(Exception):
        pass

    def kill(entry):
        if entry["round"] == 4:
            raise Killed

    for restart in (lambda **own: run(6, private, task=clients, **own), lambda out, **_: pagefl.resume(out)):
        try:
            found = restart(out=tmp_path / "cut", checkpoint_seconds=0.0, observe=kill)
        except Killed:
            continue
    assert records(found) == records(whole)
    assert all(torch.equal(found.state[name], value) for name, value in whole.state.items())
    facts, tensors = (
        [checkpoint.read(tmp_path / name / "checkpoint")[i] for name in ("cut", "whole")] for i in (1, 0)
    )
    assert facts[0]["epsilon"] == facts[1]["epsilon"] == whole.rounds[-1]["epsilon"]
    assert torch.equal(tensors[0]["privacy.clip"], tensors[1]["privacy.clip"])


def test_another_budget_is_refused_on_resume(tmp_path):
    run(2, out=tmp_path / "run")
    path = tmp_path / "run" / "spec.toml"
    path.write_text(path.read_text().replace("noise = 1.2", "noise = 1.1"))
    with pytest.raises(UserError, match=r"privacy.noise = 1.1, but the checkpoint was made with"):
        pagefl.resume(tmp_path / "run", rounds=3)


def test_a_delta_that_promises_nothing_is_said():
    said = []
    run(2, {**PRIVATE, "delta": 0.02}, say=said.append)
    assert "privacy.delta = 0.02: with 12 clients, it should be well below 0.0833333" in said


def test_the_same_bits_with_two_workers():
    one, two = (run(3, workers=workers, algorithm="scaffold") for workers in (1, 2))
    assert records(one) == records(two)
    assert all(torch.equal(one.state[name], value) for name, value in two.state.items())


def test_all_weigh_the_same_and_by_what_is_expected():
    found = run(6)
    for entry in found.rounds:
        if entry["participants"]:
            assert entry["largest_weight"] == entry["smallest_weight"] == pytest.approx(1 / (0.3 * 12))
    assert len({entry["participants"] for entry in found.rounds}) > 1


class Still(pagefl.Algorithm):
    """Clients upload what they were sent: all that moves the model is noise."""

    def local(self, clients):
        sent = clients.sent["model"]
        return pagefl.Local(upload={"model": sent.clone()}, personal=sent.clone())


@pytest.mark.parametrize("adaptive", [0.0, 0.5])
def test_the_noise_of_a_run_is_the_noise_that_it_pays_for(adaptive):
    own = {"task": {"name": "synthetic", "clients": 200}, "algorithm": Still()}
    before, after = (
        run(rounds, {**PRIVATE, "clip": 0.7, "adaptive": adaptive}, **own).state["server.model"].numpy()
        for rounds in (1, 2)
    )
    expected = 0.3 * 200
    clip, noise = 0.7, 1.2
    if adaptive:  # everybody was within the norm in the first round
        noise = (1.2**-2 - (2 * expected / 20) ** -2) ** -0.5
        clip = run(2, {**PRIVATE, "clip": 0.7, "adaptive": adaptive}, **own).rounds[1]["clip"]
        assert clip < 0.7
    assert (after - before).std() == pytest.approx(noise * clip / expected, rel=0.08)


class Bad(pagefl.Algorithm):
    def local(self, clients):
        rows = clients.train(clients.sent["model"])
        return pagefl.Local(upload={"model": rows * torch.nan}, personal=rows)


def test_uploads_that_are_not_finite_do_not_end_the_run():
    found = pagefl.run(
        task=task(), algorithm=Bad(), rounds=3, participation=1.0, personal={"when": "never"}, privacy=PRIVATE
    )
    assert [(entry["participants"], entry["quarantined"]) for entry in found.rounds] == [(0, 5)] * 3


def uploads_of_others(size: int, algorithm: str, privacy: dict) -> torch.Tensor:
    """After a round in which client 2 has this many examples."""
    generator = torch.Generator().manual_seed(5)
    x, y = torch.randn(400, FEATURES, generator=generator), torch.randint(0, 4, [400], generator=generator)
    parts = [
        (x[40 * i : 40 * i + (size if i == 2 else 9)], y[40 * i : 40 * i + (size if i == 2 else 9)])
        for i in range(4)
    ]
    test = [(part[0][:4], part[1][:4]) for part in parts]
    made = Task("sizes", linear, FederatedData(parts, test, (x[200:240], y[200:240])))
    found = pagefl.run(
        task=made,
        algorithm=algorithm,
        rounds=1,
        personal={"when": "never"},
        workers=1,
        chunk=1,
        privacy=privacy,
    )
    return found.state["clients.personal"][[0, 1, 3]]


@pytest.mark.parametrize("algorithm", ["feddyn", "scaffold"])
def test_nobody_learns_how_many_examples_another_has(algorithm):
    private = {**PRIVATE, "epsilon": 100.0}
    few, many = (uploads_of_others(size, algorithm, private) for size in (5, 40))
    assert torch.equal(few, many)


def test_without_privacy_sizes_reach_the_others():
    """So that the test above can fail."""
    few, many = (uploads_of_others(size, "feddyn", {}) for size in (5, 40))
    assert not torch.equal(few, many)


REFUSED = [
    ({"personal": {"when": "end"}}, 'hold-out losses.*expected personal.when = "never"'),
    ({"algorithm": "fedavg-ft"}, "means fedavg with the personal step"),
    ({"stop": "equilibrium"}, 'expected stop = "rounds"'),
    ({"reward": "weighted-local"}, 'expected "aggregate"'),
    ({"on_bad_upload": "stop"}, 'expected on_bad_upload = "quarantine"'),
    ({"algorithm": "fednova"}, "FedNova looks at each client's `length`"),
    ({"algorithm": {"name": "scaffold", "bounded": True}}, "Scaffold looks at each client's `length`"),
    ({"algorithm": "local"}, "upload nothing"),
    *(
        ({"players": name}, "choose players that do not, such as fixed")
        for name in ("page", "page-shared", "dapfl", "fedex", "random")
    ),
    ({"privacy": {"epsilon": 0.1, "noise": 0.5}}, r"one round would cost epsilon = [\d.]+, and"),
    ({"privacy": {"epsilon": 8.0, "noise": 0.01}}, "0, or at least 0.1"),
    ({"privacy": {"noise": 1.0}}, "there is no privacy while privacy.epsilon = 0"),
    ({"privacy": {"clip": 2.0}}, "there is no privacy while privacy.epsilon = 0"),
    ({"privacy": {**PRIVATE, "adaptive": 0.5}}, "leaves nothing for the sums"),
    ({"privacy": {**PRIVATE, "delta": 0.0}}, "privacy.delta = 0.0: it should be greater than 0"),
    ({"privacy": {"epsilon": -1.0}}, "privacy.epsilon = -1.0: it should be greater than or equal to 0"),
    ({"privacy": {"epsilom": 1.0}}, "did you mean epsilon"),
    ({"privacy": {**PRIVATE, "accountant": "moments"}}, "privacy.accountant = 'moments'"),
]


@pytest.mark.parametrize(("settings", "sentence"), REFUSED)
def test_what_would_make_epsilon_false_is_refused(settings, sentence):
    with pytest.raises(UserError, match=sentence) as refused:
        run(2, **settings)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("players", ["fixed", "schedule", "cosine"])
def test_players_that_tell_nothing_are_private(players):
    assert len(run(2, players=players).rounds) == 2


def test_a_certificate_and_an_environment_are_refused(tmp_path):
    run(2, out=tmp_path / "run")
    with pytest.raises(UserError, match="a certificate replays rounds without noise"):
        pagefl.api.verify(tmp_path / "run")
    with pytest.raises(UserError, match="an environment shows agents"):
        pagefl.environment(**COMMON, privacy=PRIVATE)


def test_without_dp_accounting_there_is_a_sentence(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)
    with pytest.raises(UserError, match=r"privacy.epsilon needs dp_accounting.*pagefl\[privacy\]"):
        run(2)


def test_a_run_of_before_counts_as_one_without_privacy():
    assert Settings.of_before()["privacy"] == Settings().privacy.model_dump()
    assert Settings().privacy.epsilon == 0


def test_noise_of_a_deployment_is_the_systems():
    """Nobody can repeat it. A simulation of the same settings can be repeated."""
    spec = specs.resolve({**COMMON, "rounds": 3, "privacy": PRIVATE})
    quiet = [].append
    half = loop.simulate(spec.make_task(), spec.make_algorithm(), spec).server
    drawn = {
        simulated: [
            loop._private(spec, half, simulated, quiet).randomness.normals(1, "model", 4).tolist()
            for _ in range(2)
        ]
        for simulated in (True, False)
    }
    assert drawn[True][0] == drawn[True][1] == Simulated(0).normals(1, "model", 4).tolist()
    assert not np.isclose(drawn[False][0], drawn[False][1]).any()
    assert loop._private(spec, half, False, quiet).randomness.kind == "system"
