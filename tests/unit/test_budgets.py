"""Budgets of players: what they allow, what they are worth, and that runs with them repeat and resume."""

import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from federations import task, trained_part

import pagefl
from pagefl.core.errors import UserError
from pagefl.core.evaluate import Scores
from pagefl.devices.costs import Costs, Prices
from pagefl.devices.fleet import Equal
from pagefl.experiments import spec as specs
from pagefl.experiments import verify
from pagefl.game.budgets import Budgets, Limit
from pagefl.game.certificate import Deviation, Trial, certify
from pagefl.game.multipliers import FIRST, LARGEST, Multipliers
from pagefl.game.players import point_server, purse
from pagefl.game.players.prices import best_at, prices_of_epochs
from pagefl.game.players.server_budget import ServerBudget, tilted
from pagefl.game.players.shared import PageShared
from pagefl.game.players.surface import moved, quadratic
from pagefl.game.protocol import Observation, Outcome, Setup
from pagefl.reports import certificate
from pagefl.runtime.run import Run

PHONES = {"name": "phones", "hours": 24.0, "reference": 1.0}  # of which a minute or so is computing
TIGHT = {"budget": 300.0, "server_budget": 500.0}


def costs(seconds: np.ndarray) -> Costs:
    return Costs(seconds, 0 * seconds, 3 * seconds)


def run(players: dict, **options: object) -> Run:
    return pagefl.run(
        **{
            "task": task(),
            "players": players,
            "workers": 1,
            "rounds": 12,
            "epochs": 6,
            "devices": PHONES,
            "chunk": 2,
            **options,
        }
    )


# page-shared


def test_a_price_is_the_least_at_which_the_best_choice_can_be_paid():
    chance = np.random.default_rng(0)
    for _ in range(50):
        epochs = np.unique(chance.integers(1, 30, 8))
        heights = chance.normal(size=len(epochs)).cumsum()
        paid = chance.uniform(epochs[0], 32, 6)
        prices = prices_of_epochs(paid, heights, epochs)
        assert (epochs[best_at(prices, heights, epochs)] <= paid).all()
        for price, most in zip(prices, paid, strict=True):
            if price:  # at any lower one it cannot
                assert epochs[(heights - 0.999 * price * epochs).argmax()] > most


def test_tilted_weights_are_the_nearest_that_can_be_paid():
    chance = np.random.default_rng(1)
    for _ in range(20):
        weights, cost = chance.dirichlet(np.full(4, 5.0)), np.array([0.5, *chance.uniform(0.5, 2, 3)])
        found, price = tilted(weights, cost)
        assert found.sum() == pytest.approx(1)
        if weights @ cost <= 1:
            assert price == 0
            assert (found == weights).all()
            continue
        assert found @ cost == pytest.approx(1)
        # the gradient of the relative entropy is a multiple of the cost's, but for a constant
        slope = np.log(found / weights)
        assert slope - slope[0] == pytest.approx(-price * (cost - cost[0]))
    assert tilted(np.array([0.5, 0.5]), np.array([1.1, 1.2]))[0].min() > 0.01  # nobody can be paid


def test_a_server_keeps_its_budget_at_the_price_in_closed_form():
    """Of two uploads that took 40 and 10 seconds, a mean of 22 leaves the first 0.4. Two weights that are
    0.7 and 0.3 get there by a price of ln(7/3 · 6/4) for the 30 seconds between them, of 22."""
    budget, uploads = ServerBudget(22.0), SimpleNamespace(seconds=np.array([40.0, 10.0]))
    assert budget.kept(np.array([0.7, 0.3]), uploads) == pytest.approx([0.4, 0.6])
    assert budget.account.multiplier == pytest.approx(np.log(7 / 3 * 6 / 4) / (30 / 22))
    assert budget.kept(np.array([0.3, 0.7]), uploads) == pytest.approx([0.3, 0.7])
    assert budget.account.multiplier == 0
    assert budget.affords(np.array([0.4, 0.6]), uploads.seconds)
    assert not budget.affords(np.array([0.41, 0.59]), uploads.seconds)


def test_a_moved_surface_is_the_same_but_for_its_height():
    surface, by, x = np.array([0.3, -0.2, -0.5, 0.7, 0.1]), np.array([0.4, -0.6]), np.array([[0.2, 0.9]])
    height = quadratic(x + by) @ surface - quadratic(by[None]) @ surface
    assert quadratic(x) @ moved(surface, by) == pytest.approx(height)


MOST, WIDTH = 1000, 2.8
PAID = np.array([300.0, 500.0, 700.0, 2000.0])


def worth(epochs: np.ndarray) -> np.ndarray:
    """Largest at MOST epochs. A client that can pay for fewer plays as many as it can, and one more share of
    its budget would be worth 1 / WIDTH. Clients compare moves under noise from -1 to 1, so that the mean of
    what they tell is the difference itself."""
    return np.log(epochs) / WIDTH


def play_shared() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Epochs and multipliers after the exploration, of one client for each of PAID; and the shares of budgets
    that all used in every round."""
    count, rounds = 2000, 20
    setup = Setup(count, rounds, 3, 0.1, 800, freeze=frozenset({"eta"}), devices=Equal())
    players = PageShared(epochs_max=MOST, explore=0.5, budget=60.0, weights="size")
    clients, server = players.client_policy(setup), players.server_policy(setup)
    everybody, ones = np.arange(count), np.ones(count)
    prices = Prices(costs(60.0 / np.tile(PAID, count // len(PAID))), costs(np.zeros(count)))
    seen = Observation(lambda: Scores(ones, ones), prices=prices)
    chance, used = np.random.default_rng(5), []
    for round in range(1, rounds + 1):
        clients.receive(server.sent)
        exploring = clients.exploring
        first = clients.act(round, everybody, seen).epochs
        rival = clients.rivals(round, everybody, seen)
        second = first if rival is None else rival.epochs
        lead = worth(second) - worth(first) + chance.uniform(-1, 1, count)
        spent = prices.epoch * (first + second if exploring else first)
        clients.reward(round, everybody, Outcome(*[ones] * 6, lead, spent))
        used.append(clients.account().used)
        server.update(round, clients.experience(everybody))
    shown = slice(0, len(PAID))
    return first[shown], clients.account().multiplier[shown], np.array(used)


def test_clients_that_share_a_search_find_their_budgets_and_their_prices(monkeypatch):
    monkeypatch.setattr(point_server, "KEPT", 2000)
    epochs, multiplier, used = play_shared()
    assert (used <= 1 + 1e-9).all()  # in every round, exploring or not
    assert epochs == pytest.approx(np.minimum(PAID, MOST), rel=0.05)
    assert multiplier == pytest.approx(np.where(PAID < MOST, 1 / WIDTH, 0.0), rel=0.1)


def test_without_a_price_they_exceed_their_budgets(monkeypatch):
    monkeypatch.setattr(purse, "prices_of_epochs", lambda paid, heights, epochs: np.zeros(len(paid)))
    assert (play_shared()[2][-1] > 1).mean() > 0.7


def test_without_a_search_those_that_pay_for_less_play_the_same_lr():
    setup = Setup(2, 10, 3, 0.1, 20, devices=Equal())
    clients = PageShared(explore=0.0, decay=0.0, budget=60.0).client_policy(setup)
    clients.receive(PageShared(explore=0.0, budget=60.0).server_policy(setup).sent)
    prices = Prices(costs(np.array([1.0, 10.0])), costs(np.zeros(2)))
    ones = np.ones(2)
    moves = clients.act(1, np.arange(2), Observation(lambda: Scores(ones, ones), prices=prices))
    assert moves.epochs.tolist() == [20, 6]
    assert moves.lr == pytest.approx([0.1, 0.1], rel=1e-6)


# budgets and multipliers


def test_energy_of_a_run_is_spread_over_the_rounds_that_are_left():
    setup = Setup(2, 10, seed=0, lr=0.1, epochs=1, devices=Equal())
    budgets, both = Budgets(setup, 100.0, "energy"), np.arange(2)
    prices = Prices(costs(np.ones(2)), costs(np.zeros(2)))
    assert budgets.limit(1, both, prices).budget.tolist() == [10, 10]
    budgets.spend(both[:1], costs(np.array([5.0])))  # 15 joules
    # the first has 85 for nine rounds; the second was absent, and expects to be in half of those left
    assert budgets.limit(2, both, prices).budget == pytest.approx([85 / 9, 100 / (1 + 8 / 2)])


def test_everybody_may_play_one_epoch():
    limit = Limit(np.array([0.5, 1.0, 0.7]), np.array([0.1, 0.1, 0.1]), np.array([0.9, 0.3, 0.3]))
    assert np.floor(limit.epochs).tolist() == [1, 3, 2]  # 0.6 / 0.3 is below 2 by rounding
    assert limit.reachable.tolist() == [1, 1, 0.7]


def test_a_multiplier_rises_falls_and_comes_to_rest():
    prices = Multipliers(3)
    who = np.array([0, 2])
    for _ in range(3):
        prices.learn(who, np.array([1.5, 0.45]))
    assert prices.of(np.arange(3)) == pytest.approx([FIRST * (1 + 2**-0.5 + 3**-0.5), 0, 0])
    before = prices.of(np.array([0]))[0]
    prices.learn(np.array([0]), np.array([0.99]))  # nearly all of the budget: no step
    assert prices.of(np.array([0]))[0] == before
    for _ in range(10_000):
        prices.learn(np.array([2]), np.array([9.0]))
    assert prices.weight(np.array([2]))[0] == pytest.approx(LARGEST)


def test_moves_that_cannot_be_paid_do_not_count_in_the_certificate():
    def replay(deviation: Deviation | None) -> dict[str, float]:
        return {"client 0": deviation.move[1] if deviation else 1.0}

    tried = [Deviation("client 0", (0.1, float(epochs))) for epochs in (2, 3, 9)]
    free, bound = (
        certify(1, replay, tried, allowed)[0]
        for allowed in (lambda deviation: True, lambda deviation: deviation.move[1] <= 3)
    )
    assert (free.epsilon, free.tried, free.barred) == (8, 3, 0)
    assert (bound.epsilon, bound.tried, bound.barred) == (2, 2, 1)


# whole runs

KINDS = {"page": {"name": "page", "warm_up": 2}, "page-shared": {"name": "page-shared", "explore": 0.3}}


@pytest.mark.parametrize(
    "players",
    [{**KINDS["page"], **TIGHT}, {**KINDS["page-shared"], **TIGHT, "budget": 9000.0, "budget_of": "energy"}],
)
def test_runs_with_budgets_repeat_and_resume_to_the_bit(players, tmp_path):
    options = {"participation": 0.6}
    whole = run(players, **options)

    def stop(entry: dict) -> None:
        if entry["round"] == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    run(players, **options, workers=2, out=tmp_path / "run", observe=stop)
    resumed = pagefl.resume(tmp_path / "run", task=task())
    assert resumed.state.keys() == whole.state.keys()
    assert all(torch.equal(value, resumed.state[name]) for name, value in whole.state.items())
    assert whole.client_rounds == resumed.client_rounds
    assert whole.history[["over_budget", "server_used"]].notna().all().all()
    # no test label reaches a price
    noisy = run(players, **options, task=task(flip=True))
    one, other = (trained_part(found.state) for found in (whole, noisy))
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_budgets_are_kept_after_the_search():
    found = run({**KINDS["page-shared"], **TIGHT})
    late = found.clients[found.clients["round"] > 11]
    assert ((late.used <= 1) | (late.epochs == 1)).all()
    assert (late.multiplier > 0).any()
    assert late.used.to_numpy() == pytest.approx(late.seconds.to_numpy() / TIGHT["budget"])


def test_verify_tells_which_budgets_bind(tmp_path):
    players = {**KINDS["page-shared"], **TIGHT, "epochs_max": 6}
    raw = {"task": {"name": "synthetic", "clients": 4}, "players": players, "rounds": 11, "workers": 1}
    spec = specs.resolve({**raw, "devices": {**PHONES, "reference": 100.0}})
    found = pagefl.run(spec, out=tmp_path / "run")
    trial = Trial(horizon=1, clients=4, random=0)
    findings = verify.verify(tmp_path / "run", spec, trial, lambda line: None)["findings"]
    clients = [next(f for f in findings if f["player"] == f"client {i}") for i in range(4)]
    last = found.clients[found.clients["round"] == 11]  # the next one costs as much
    assert [f["used"] for f in clients] == pytest.approx(last.used.to_numpy())
    assert [f["multiplier"] for f in clients] == pytest.approx(last.multiplier.to_numpy())
    assert [f["tried"] + f["barred"] for f in clients] == [9] * 4  # three lr with 1, 4 and 6 epochs
    assert {f["tried"] for f in clients if f["used"] > 1} == {
        3
    }  # no more than the one epoch that all may play
    assert {f["tried"] for f in clients} != {3}
    assert next(f for f in findings if f["player"] == "server")["used"] <= 1 + 1e-9
    assert "budget used" in [
        column.header for column in certificate.table({"run": "", "findings": findings}).columns
    ]


@pytest.mark.parametrize(
    ("players", "options", "message"),
    [
        ({"budget": 5.0}, {"devices": {"name": "none"}}, "no device's time is simulated"),
        ({"server_budget": 5.0}, {"devices": {"name": "none"}}, "no device's time is simulated"),
        ({"budget": 5.0}, {"freeze": ["alpha"]}, "freeze holds alpha fixed"),
        ({"server_budget": 5.0}, {"freeze": ["p"]}, "freeze holds p fixed"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_budget_that_cannot_be_kept_is_refused(kind, players, options, message):
    with pytest.raises(UserError, match=message):
        run({**KINDS[kind], **players}, **options)
