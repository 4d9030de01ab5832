"""What every kind of players must keep. A new one is tested by being registered.

That a deployment plays as a simulation does is tested in unit/test_deploy.py; here, that a client alone plays
as among others.
"""

import copy
import os
import signal
from collections.abc import Callable
from dataclasses import asdict, fields
from functools import cache

import numpy as np
import pytest
import torch
from federations import MODULES, SETTINGS, data, task, trained_part

import pagefl
from pagefl import FederatedData, Task
from pagefl.core import rng
from pagefl.core.algorithm import State
from pagefl.core.evaluate import Scores
from pagefl.devices.costs import Costs, Prices
from pagefl.devices.fleet import Equal
from pagefl.experiments.spec import RunSpec, resolve
from pagefl.game.game import Game
from pagefl.game.players import PLAYERS
from pagefl.game.protocol import Observation, Outcome, Players, Setup
from pagefl.game.rewards import DemandRatio
from pagefl.game.uploads import Uploads
from pagefl.runtime.run import Run
from pagefl.runtime.simulation import Simulation, simulate

FAIR = DemandRatio()
CLIENTS = 5
LEARNS_SOON = {  # settings by which agents learn early
    "dapfl": {"warm_up": 4},
    "page": {"warm_up": 4},
    "page-shared": {"explore": 0.5},
    "fedex": {},
}
BUDGETS = {"budget": 90.0, "budget_of": "energy", "server_budget": 2.0}
PHONES = {"name": "phones", "hours": 24.0, "reference": 0.0}
NARROW = {"lr_min": 0.01, "lr_max": 0.4, "epochs_max": 4}  # ranges, where there are any
CASES = list(PLAYERS)
LEARNERS = [case for case in CASES if case in LEARNS_SOON]


def of_cases(cases: list[str]) -> pytest.MarkDecorator:
    """Tests of one case share its reference, and so a worker."""
    return pytest.mark.parametrize(
        "case", [pytest.param(case, marks=pytest.mark.xdist_group(case)) for case in cases]
    )


every_case, every_learner = of_cases(CASES), of_cases(LEARNERS)
BUDGETED = [case for case in CASES if "budget" in {field.name for field in fields(PLAYERS[case])}]
with_and_without_budgets = pytest.mark.parametrize(
    ("case", "budget"),
    [
        pytest.param(case, budget, marks=pytest.mark.xdist_group(case))
        for case in CASES
        for budget in (False, True)
        if case in BUDGETED or not budget
    ],
)


def settings_of(case: str, budget: bool = False) -> dict:
    known = {field.name for field in fields(PLAYERS[case])}
    narrow = {setting: value for setting, value in NARROW.items() if setting in known}
    return {"name": case, **LEARNS_SOON.get(case, {}), **narrow, **(BUDGETS if budget else {})}


def players_of(case: str, budget: bool = False) -> Players:
    return spec_of(case, budget=budget).make_players()


def rounds_of(case: str, participation: float) -> int:
    """Agents of their own learn from 32 transitions on, and have one for each round they take part in."""
    if case in ("page", "dapfl"):
        return 40 if participation == 1.0 else 100
    if case == "page-shared":  # its point moves once comparisons agree
        return 32 if participation == 1.0 else 60
    return 12


def late(case: str) -> int:
    """A round in which those that learn do so."""
    return rounds_of(case, 1.0) // 2 - 4 if case == "page-shared" else rounds_of(case, 1.0) - 6


def options_of(case: str, participation: float = 1.0, budget: bool = False) -> dict:
    rounds = rounds_of(case, participation)
    return {
        "players": settings_of(case, budget),
        "devices": PHONES if budget else {},
        "algorithm": "fedavg",
        "rounds": rounds,
        "participation": participation,
        "chunk": 2,
    }


def spec_of(case: str, participation: float = 1.0, budget: bool = False) -> RunSpec:
    return resolve(options_of(case, participation, budget), task())


def run(case: str, participation: float = 1.0, **options: object) -> Run:
    return pagefl.run(**{"task": task(), **options_of(case, participation), **options})


@cache
def reference(case: str, participation: float = 1.0) -> Run:
    return run(case, participation)


def simulation_of(case: str, participation: float = 1.0, budget: bool = False) -> Simulation:
    spec = spec_of(case, participation, budget)
    return simulate(task(), spec.make_algorithm(), spec)


def game_of(case: str, participation: float = 1.0, rounds: int = 0, budget: bool = False) -> Game:
    """After these rounds."""
    game = Game(*simulation_of(case, participation, budget).game(players_of(case, budget)))
    for round in range(1, rounds + 1):
        game.play(round, FAIR)
    return game


def observed(loss: np.ndarray, accuracy: np.ndarray, prices: Prices | None = None) -> Observation:
    return Observation(lambda: Scores(loss, accuracy), FAIR, prices)


def copied(tensors: State) -> State:
    return {name: value.clone() for name, value in tensors.items()}


def learned(tensors: State) -> State:
    """Networks, their optimisers and replays: what no move changes by itself."""
    return {
        name: value
        for name, value in tensors.items()
        if "waiting." not in name and not name.endswith("noise")
    }


def of_agents(tensors: State) -> State:
    return {name: value for name, value in tensors.items() if "_agent." in name}


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def assert_same_bits(one: Run, other: Run) -> None:
    assert {n: t.numpy().tobytes() for n, t in one.state.items()} == {
        n: t.numpy().tobytes() for n, t in other.state.items()
    }
    assert [{**entry, "seconds": 0} for entry in one.rounds] == [
        {**entry, "seconds": 0} for entry in other.rounds
    ]
    assert one.client_rounds == other.client_rounds


@pytest.mark.parametrize("participation", [1.0, 0.4])
@every_learner
def test_these_settings_make_agents_learn(case, participation):
    """Or much of what follows would say nothing."""
    if case == "page-shared":
        point = reference(case, participation).state["server_agent.point"]
        assert not torch.allclose(point, torch.tensor([SETTINGS["lr"], SETTINGS["epochs"]]).log().double())
        return
    updates = {
        name: value
        for name, value in reference(case, participation).state.items()
        if name.endswith("updates")
    }
    assert updates
    assert all(bool((value > 0).any()) for value in updates.values()), updates


@every_case
def test_same_spec_same_bits(case):
    assert_same_bits(reference(case), run(case))


@every_case
def test_workers_change_no_bit(case):
    assert_same_bits(reference(case), run(case, workers=3))


def stop_after(round: int) -> Callable[[dict], None]:
    """As Ctrl-C does: after the round, with a checkpoint."""
    return lambda entry: os.kill(os.getpid(), signal.SIGTERM) if entry["round"] == round else None


@every_case
@pytest.mark.parametrize("participation", [1.0, 0.4])
@pytest.mark.parametrize("when", ["early", "late"])  # in the warm-up and after it
def test_resume_is_exact(case, participation, when, tmp_path):
    """Replay, Adam's moments, noise and the half-finished transition are all in the checkpoint."""
    rounds = rounds_of(case, participation)
    stopped_at = 2 if when == "early" else rounds - rounds // 10 - 1
    run(case, participation, out=tmp_path / "run", observe=stop_after(stopped_at))
    assert len(pagefl.load(tmp_path / "run", task=task()).rounds) == stopped_at
    assert_same_bits(reference(case, participation), pagefl.resume(tmp_path / "run", task=task()))


@with_and_without_budgets
def test_absent_clients_wait_untouched(case, budget):
    """Every tensor of a clients' policy has a row for each client, and a round changes those of its
    participants alone.
    """
    game = game_of(case, 0.4, budget=budget)
    changed = set()
    for round in range(1, rounds_of(case, 0.4) + 1):
        before = copied(game.clients.state())
        absent = np.setdiff1d(np.arange(CLIENTS), game.play(round, FAIR).orders.clients)
        assert len(absent) == 3
        for name, value in game.clients.state().items():
            assert len(value) == CLIENTS, name
            assert torch.equal(value[absent], before[name][absent]), (round, name)
            changed |= set() if torch.equal(value, before[name]) else {name}
    assert "clients.personal" in changed
    agents = {name for name in of_agents(game.clients.state()) if "target" not in name}
    assert agents <= changed


# Streams whose last name is the client's place.
OF_CLIENTS = ("batches", "client ", "random player", "random server", "exploring", "drawn")


@every_case
def test_permuted_clients_permute_results(case, monkeypatch):
    """Each client keeps its own random stream, so only the order of sums may differ.

    What depends on clients' numbers by intent is left out: the server's agent of PAGE, which has an input for
    each client, does not weigh; the minibatches of a policy that all share, which are drawn by place, are not
    reached.
    """
    order = [3, 0, 4, 1, 2]
    own = data()
    pairs = {role: [getattr(own, role).client(i) for i in range(CLIENTS)] for role in ("train", "test")}
    public = (torch.cat([own.game.x, own.server_test.x]), torch.cat([own.game.y, own.server_test.y]))
    options = options_of(case) | ({"freeze": ["p"]} if case == "page" else {})

    def permuted(order: list[int]) -> Run:
        key = rng.key

        def moved(seed: int, *names: str | int) -> int:
            return (
                key(seed, *names[:-1], order[names[-1]])
                if str(names[0]).startswith(OF_CLIENTS)
                else key(seed, *names)
            )

        monkeypatch.setattr(rng, "key", moved)
        shuffled = FederatedData(
            [pairs["train"][i] for i in order], [pairs["test"][i] for i in order], public
        )
        result = pagefl.run(**{**options, "task": Task("permuted", MODULES["linear"], shuffled, SETTINGS)})
        monkeypatch.undo()
        return result

    straight, shuffled = permuted([0, 1, 2, 3, 4]), permuted(order)
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(shuffled.state["server.model"], straight.state["server.model"], **close)
    torch.testing.assert_close(
        shuffled.state["clients.personal"], straight.state["clients.personal"][order], **close
    )
    tables = [run.clients for run in (straight, shuffled)]
    for column in ("lr", "epochs", "weight", "reward"):
        one, other = (
            table.pivot(index="round", columns="client", values=column).to_numpy() for table in tables
        )
        np.testing.assert_allclose(other, one[:, order], rtol=1e-4)


@every_case
def test_no_test_label_reaches_training_states_or_rewards(case):
    """P5: with noise for test labels every trained tensor and every move is the same, bit for bit, and test
    scores are not.
    """
    clean, noisy = reference(case), run(case, task=task(flip=True))
    assert same(trained_part(clean.state), trained_part(noisy.state))
    for name in ("lr", "epochs", "weight", "reward", "state", "server_state", "train_loss"):
        assert [entry.get(name) for entry in clean.client_rounds] == [
            entry.get(name) for entry in noisy.client_rounds
        ], name
    for name in ("reward_server", "reward_clients", "payoffs", "agents", "game_loss"):
        assert [entry[name] for entry in clean.rounds] == [entry[name] for entry in noisy.rounds], name
    assert {entry["protocol"] for entry in clean.rounds} == {"clean"}
    assert clean.rounds[-1]["local_loss"] != noisy.rounds[-1]["local_loss"]
    assert clean.rounds[-1]["global_loss"] != noisy.rounds[-1]["global_loss"]


@every_case
def test_acting_is_not_learning(case):
    """Asked twice for a move, a policy has learned nothing. A round teaches those that learn."""
    round = late(case)
    game = game_of(case, rounds=round)
    follower, leaders = game.follower, game.clients
    orders = follower.orders(round + 1, FAIR)
    leaders._receive(orders)
    before = copied(learned(of_agents(game.state())))
    clients = np.arange(CLIENTS)
    scores = leaders.half.evaluate(round + 1, "reward")["reward"]
    uploads = Uploads(follower.half, round + 1, clients, leaders.half.sizes.astype(float))
    for _ in range(2):
        leaders.policy.act(round + 1, clients, observed(*scores))
        follower.policy.act(round + 1, clients, uploads)
        assert same(learned(of_agents(game.state())), before)
    game.play(round + 1, FAIR)
    assert same(learned(of_agents(game.state())), before) == (case not in LEARNERS)


@with_and_without_budgets
def test_frozen_players_do_not_learn(case, budget):
    game = game_of(case, rounds=late(case), budget=budget)
    for side in (game.follower, game.clients):
        side.policy.freeze()
    before = copied(of_agents(game.state()))
    for round in range(late(case) + 1, late(case) + 4):
        game.play(round, FAIR)
    assert same(of_agents(game.state()), before)


@every_learner
def test_frozen_players_do_not_explore(case):
    """By the same observation they move alike in every round; before, they did not."""
    round = late(case)
    policy, clients = game_of(case, rounds=round).clients.policy, np.arange(CLIENTS)

    def moves(round: int) -> np.ndarray:
        return np.stack(policy.act(round, clients, observed(*np.linspace((0.2, 0.8), (0.8, 0.2), CLIENTS).T)))

    assert not np.array_equal(moves(round + 1), moves(round))
    policy.freeze()
    assert np.array_equal(moves(round + 1), moves(round))


@every_case
@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_moves_stay_in_their_ranges(case, participation):
    players, played = players_of(case), reference(case, participation).clients.query("trained")
    falls_to = getattr(players, "lr_last", SETTINGS["lr"] * getattr(players, "floor", 1.0))
    lowest, highest = getattr(players, "lr_min", falls_to), getattr(players, "lr_max", SETTINGS["lr"])
    if case == "page-shared":  # which decays, and trains again with a tenth of it
        lowest, highest = 0.0, SETTINGS["lr"] * players.span
    assert played.lr.between(lowest * (1 - 1e-6), highest * (1 + 1e-6)).all()
    assert played.epochs.between(1, getattr(players, "epochs_max", SETTINGS["epochs"])).all()
    assert (played.epochs % 1 == 0).all()
    assert (played.weight >= 0 if case == "page-shared" else played.weight > 0).all()  # trust may be lost
    assert played.groupby("round").weight.sum().to_numpy() == pytest.approx(
        np.ones(rounds_of(case, participation))
    )
    if case not in ("fixed", "schedule", "partial", "scaled"):  # the last two play with devices alone
        assert played.lr.nunique() > (2 if case == "fedex" else CLIENTS)  # they do play


@every_case
def test_players_keep_nothing_to_themselves(case):
    players = players_of(case)
    before = copy.deepcopy(vars(players))
    first, second = (run(case, players=players) for _ in range(2))
    assert vars(players) == before == asdict(players)
    assert_same_bits(first, second)


@with_and_without_budgets
def test_a_client_alone_plays_as_among_others(case, budget):
    """On a node that holds one of many: the same moves, the same experience, the same agent."""
    players = players_of(case, budget)
    many = Setup(CLIENTS, rounds_of(case, 1.0), seed=3, lr=0.1, epochs=3, devices=Equal())
    each = Costs(*np.linspace(0.2, 2.0, CLIENTS) * np.ones((3, 1)))
    prices = Prices(each, each * 0.5) if budget else None
    together, server = players.client_policy(many), players.server_policy(many)
    alone = [players.client_policy(many._replace(clients=1, first=i)) for i in range(CLIENTS)]
    everybody, me = np.arange(CLIENTS), np.array([0])
    chance = np.random.default_rng(0)
    for round in range(1, many.rounds + 1):
        accuracy, loss, after = chance.uniform(0.1, 1.0, (3, CLIENTS))
        seen = observed(loss, accuracy, prices)
        shrunk = np.where(after > 0.8, 0.1, 1)
        outcome = Outcome(1 / after, accuracy, after, after / 2, np.zeros(CLIENTS), shrunk, after - 0.5, each)
        policies = [(together, everybody, seen, outcome)]
        for i, policy in enumerate(alone):
            policies.append((policy, me, seen.of(np.array([i])), outcome.of(np.array([i]))))
        played, given = [], []
        for policy, who, shown, earned in policies:
            policy.receive(server.sent)
            policy.observe(round, who, shown)
            played.append(policy.act(round, who, shown))
            policy.reward(round, who, earned)
            given.append(policy.experience(who))
        for i in range(CLIENTS):
            assert played[1 + i].lr[0] == pytest.approx(played[0].lr[i], rel=1e-4)
            assert played[1 + i].epochs[0] == played[0].epochs[i]
            for name, rows in given[1 + i].items():
                torch.testing.assert_close(rows[0], given[0][name][i], rtol=1e-4, atol=1e-5)
        if given[0]:
            server.update(round, given[0])
    for i, policy in enumerate(alone):
        for name, value in policy.tensors.items():
            torch.testing.assert_close(value[0], together.tensors[name][i], rtol=1e-3, atol=1e-4)
