"""The rules of the game, one reading at a time."""

import json
import math
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from federations import CLASSES, FEATURES, SETTINGS, task, trained_part

import pagefl
from pagefl import FederatedData, Task
from pagefl.core import personal
from pagefl.experiments import spec as specs
from pagefl.experiments import verify
from pagefl.game.certificate import Deviation, Trial, bellman_residual, certify, certify_game, certify_steps
from pagefl.game.equilibrium import Tolerances, Watch
from pagefl.game.ranges import Ranges
from pagefl.game.rewards import DemandRatio, reward
from pagefl.runtime.demand import Demand, tip
from pagefl.runtime.simulation import simulate

QUICK = {"name": "page", "warm_up": 4, "explore_rounds": 20}
LEARNS_SOON = {
    "page": {"warm_up": 4},
    "dapfl": {"warm_up": 4},
    "page-shared": {"explore": 0.7},
}


def play(players, **settings):
    return pagefl.run(task=task(), players=players, **{"algorithm": "fedavg", **settings})


def test_actions_cover_their_ranges():
    ranges = Ranges(1e-3, 0.1, 20, temperature=0.5)
    actions = np.array([-1.0, 0.0, 1.0])
    assert ranges.lr(actions) == pytest.approx([1e-3, 1e-2, 0.1])
    assert ranges.epochs(actions).tolist() == [1, 10, 20]
    assert ranges.weights(actions) == pytest.approx(np.exp(2 * actions) / np.exp(2 * actions).sum())
    released = Ranges(1e-3, 0.1, 20, protocol="released")
    assert released.lr(actions) == pytest.approx([1e-3, 1e-3, 0.1])
    assert released.epochs(np.array([-1.0, 0.04, 0.9])).tolist() == [1, 1, 18]


def test_rewards():
    assert reward([0.5, 0.0], 1e-5) == pytest.approx([1 / 0.50001, 1e5])
    assert np.isfinite(reward(0.0, 0.0))


@pytest.mark.parametrize("name", ["page", "dapfl", "page-shared"])
def test_test_labels_reach_agents_by_the_released_protocol(name):
    """As it says of itself. By the clean one they do not: see contract/test_players.py."""
    players = {"name": name, **LEARNS_SOON[name]}
    clean, noisy = (
        pagefl.run(task=task(flip=flip), algorithm="fedavg", players=players, rounds=45, protocol="released")
        for flip in (False, True)
    )
    assert not all(torch.equal(value, noisy.state[key]) for key, value in trained_part(clean.state).items())
    assert {entry["protocol"] for entry in clean.rounds} == {"released"}


def test_states_and_rewards_are_what_the_paper_says():
    run = play(QUICK, rounds=3)
    alone = pagefl.run(task=task(), algorithm="fedavg", rounds=1)
    first = run.clients.query("round == 1")
    x, y = task().data.train.client(2)
    start = task().fresh_module(0)
    with torch.no_grad():
        accuracy = float((start(x).argmax(1) == y).double().mean())
    assert first.state.iloc[2] == pytest.approx(accuracy)  # s_i: W on D_i, before training
    # u_i = 1 / f_i
    assert first.reward.to_numpy() == pytest.approx(1 / first.train_loss.to_numpy(), rel=1e-6)
    assert run.rounds[0]["reward_server"] == pytest.approx(1 / run.rounds[0]["game_loss"])
    assert first.weight.sum() == pytest.approx(1)
    assert alone.clients.weight.to_numpy() == pytest.approx(np.array([3, 17, 40, 25, 9]) / 94)


def test_the_server_sees_the_leaders_result_before_it_moves():
    """Its state in round 1 is the accuracy of the models uploaded in round 1."""
    run = play(QUICK, rounds=1, personal={"when": "never"})
    examples = task().data.game
    for client, seen in enumerate(run.clients.server_state):
        with torch.no_grad():
            accuracy = float((run.personal(client)(examples.x).argmax(1) == examples.y).double().mean())
        assert seen == pytest.approx(accuracy)


def test_weighted_local_reward():
    run = play("random", rounds=2, reward="weighted-local")
    last = run.clients.query("round == 2")
    assert run.rounds[-1]["reward_server"] == pytest.approx(
        1 / (last.weight * last.train_loss).sum(), rel=1e-5
    )


@pytest.mark.parametrize("freeze", [["p"], ["alpha"], ["eta"], ["p", "alpha", "eta"]])
def test_frozen_factors_stay(freeze):
    clients = play("random", rounds=3, freeze=freeze).clients
    assert (set(clients.lr) == {0.3}) == ("eta" in freeze)
    assert (set(clients.epochs) == {2}) == ("alpha" in freeze)
    by_size = np.array([3, 17, 40, 25, 9]) / 94
    assert np.allclose(clients.query("round == 3").weight, by_size) == ("p" in freeze)


def test_schedule_falls_from_the_tasks_to_the_last():
    history = play({"name": "schedule", "lr_last": 0.003, "epochs_last": 1}, rounds=3, epochs=5).history
    assert history.mean_lr.tolist() == pytest.approx([0.3, 0.03, 0.003])
    assert history.mean_epochs.tolist() == [5, 3, 1]


def test_cosine_falls_from_the_tasks_to_its_floor():
    history = play({"name": "cosine", "floor": 0.1}, rounds=5, epochs=3).history
    halfway = math.sqrt(0.5) / 2
    shares = [1, 0.1 + 0.9 * (0.5 + halfway), 0.55, 0.1 + 0.9 * (0.5 - halfway), 0.1]
    assert history.mean_lr.tolist() == pytest.approx([0.3 * share for share in shares])
    assert history.mean_epochs.tolist() == [3] * 5
    clients = play("cosine", rounds=2).clients
    assert clients.lr.tolist() == pytest.approx([0.3] * 5 + [0.0003] * 5)
    assert clients.query("round == 2").weight.to_numpy() == pytest.approx(np.array([3, 17, 40, 25, 9]) / 94)


def test_decay_is_a_setting_of_every_run():
    """The control of a learning rate that falls by a factor: fixed players and lr_decay."""

    class Decay(pagefl.Players):
        def client_policy(self, setup):
            return Decaying(setup)

    class Decaying(pagefl.ClientPolicy):
        def act(self, round, clients, seen):
            lr, epochs = super().act(round, clients, seen)
            return pagefl.Moves(lr * 0.998 ** (round - 1), epochs)

    by_setting, by_players = play("fixed", rounds=4, lr_decay=0.998), play(Decay(), rounds=4)
    assert by_setting.history.mean_lr.tolist() == pytest.approx([0.3 * 0.998**i for i in range(4)])
    assert torch.equal(by_setting.state["server.model"], by_players.state["server.model"])
    assert torch.equal(by_setting.state["clients.personal"], by_players.state["clients.personal"])


def test_bias_multiplies_what_is_learned_from_and_not_what_is_shown():
    fair, tipped = (play(QUICK, rounds=2, bias=bias) for bias in ("1:1", "10:2"))
    assert fair.rounds[0]["reward_server"] == tipped.rounds[0]["reward_server"]
    for side, factor in (("server", 10), ("clients", 2)):
        rewards = [run.state[f"{side}_agent.replay.rewards"][:, 0] for run in (fair, tipped)]
        torch.testing.assert_close(rewards[1], factor * rewards[0])


def test_scheduled_shift():
    run = play("fixed", rounds=4, bias=[[0, "1:1"], [3, "10:1"]])
    assert [entry["bias"] for entry in run.rounds] == ["1:1", "1:1", "10:1", "10:1"]


def test_a_live_shift_is_taken_up_and_replayed(tmp_path):
    """Taken up in round 3; killed; the resume, which begins before it, plays it in round 3 again."""
    out = tmp_path / "run"
    ask = lambda entry: tip(out, "10:1") if entry["round"] == 2 else None  # noqa: E731
    straight = play(QUICK, rounds=6, out=out, observe=ask)
    assert [entry["bias"] for entry in straight.rounds] == ["1:1", "1:1", *["10:1"] * 4]
    for name in ("checkpoint", "rounds.jsonl", "clients.jsonl"):
        (out / name).unlink()
    shutil.rmtree(out / "stages", ignore_errors=True)
    again = pagefl.resume(out, task=task())
    assert [entry["bias"] for entry in again.rounds] == [entry["bias"] for entry in straight.rounds]
    assert torch.equal(
        again.state["server_agent.replay.rewards"], straight.state["server_agent.replay.rewards"]
    )
    assert json.loads((out / "bias.jsonl").read_text()) == {"round": 3, "bias": "10:1"}


@pytest.mark.parametrize("ratio", ["10", "a:b", "1:0", "-1:1", "1:1:1", "nan:1", "inf:1"])
def test_bad_ratios(ratio, tmp_path):
    with pytest.raises(pagefl.UserError, match="such as 10:1"):
        tip(tmp_path, ratio)
    with pytest.raises(pagefl.UserError, match="bias"):
        pagefl.run(task="synthetic", bias=ratio, rounds=1)
    assert not list(tmp_path.iterdir())


def test_later_shifts_go_before_earlier_ones():
    demand = Demand([(0, DemandRatio(1, 1)), (5, DemandRatio(10, 1))], None)
    assert [str(demand.at(round)) for round in (1, 4, 5, 9)] == ["1:1", "1:1", "10:1", "10:1"]


def test_a_run_ends_at_rest_and_says_when(tmp_path):
    """Tiny steps: nothing evolves, so it rests as soon as a whole window is seen. Large ones: it does not."""
    options = {
        "task": task(),
        "algorithm": "fedavg",
        "stop": "equilibrium",
        "equilibrium_window": 5,
        "rounds": 30,
    }
    # the first change needs two rounds' rewards
    assert len(pagefl.run(**options, lr=1e-7, out=tmp_path / "still").rounds) == 6
    assert len(pagefl.run(**options, lr=1.0).rounds) == 30
    assert len(pagefl.resume(tmp_path / "still", task=task()).rounds) == 6


def test_rest_is_exact_over_a_resume(tmp_path):
    options = {
        "task": task(),
        "algorithm": "fedavg",
        "stop": "equilibrium",
        "equilibrium_window": 5,
        "lr": 1e-7,
    }
    pagefl.run(**options, rounds=3, out=tmp_path / "run")
    assert len(pagefl.resume(tmp_path / "run", task=task(), rounds=30).rounds) == 6


def test_watch_needs_every_quantity_to_rest():
    row, still = torch.ones(4), torch.ones(2, 4)
    for moving in range(3):
        watch = Watch(Tolerances(window=2, models=1e-3, payoffs=1e-2))
        watch.remember(row, still)
        rested = False
        for t in range(1, 6):
            values = [
                row * (1 + t * (moving == 0)),
                still * (1 + t * (moving == 1)),
                1.0 + t * (moving == 2),
                1.0,
            ]
            rested = watch.converged(*values)
        assert not rested


def test_certificate_of_a_game_with_a_known_equilibrium():
    """u_1 = 4 - (a - 0.4)^2, u_2 = 4 - (b - 0.5 a)^2: at (0.4, 0.2) nobody gains; elsewhere somebody does."""

    def replay_of(a, b):
        def replay(deviation: Deviation | None):
            x = deviation.move[0] if deviation and deviation.player == "leader" else a
            y = deviation.move[0] if deviation and deviation.player == "follower" else b
            return {"leader": 4 - (x - 0.4) ** 2, "follower": 4 - (y - 0.5 * x) ** 2}

        return replay

    tried = [
        Deviation(player, (move,)) for player in ("leader", "follower") for move in np.linspace(-1, 1, 21)
    ]
    near = {f.player: f.epsilon for f in certify(0, replay_of(0.4, 0.2), tried)}
    far = {f.player: f for f in certify(0, replay_of(-0.9, 0.9), tried)}
    assert near == {"leader": 0.0, "follower": 0.0}
    assert far["leader"].epsilon > 0.4
    assert far["leader"].move == pytest.approx((0.4,))
    assert abs(far["follower"].move[0] + 0.45) < 0.06  # the two moves next to -0.45


def test_bellman_residual_is_zero_on_a_true_path_and_not_on_another():
    rewards = np.random.default_rng(0).uniform(1, 3, 400)
    payoffs = np.cumsum(0.99 ** np.arange(1, 401) * rewards)
    assert bellman_residual(rewards, payoffs, 0.99) < 1e-12
    assert bellman_residual(rewards[::-1], payoffs, 0.99) > 1e-3


@pytest.mark.slow
def test_a_thousand_clients():
    """The server's network has N inputs and N outputs; it must work at N = 1000."""
    x = torch.randn(4, FEATURES, generator=torch.Generator().manual_seed(1))
    pair = (x, torch.arange(4) % CLASSES)
    many = Task(
        "many",
        torch.nn.Linear(FEATURES, CLASSES),
        FederatedData([pair] * 1000, [pair] * 1000, pair),
        SETTINGS,
    )
    run = pagefl.run(task=many, players={"name": "page", "warm_up": 1}, rounds=36)
    assert len(run.clients.query("round == 36")) == 1000
    assert "server_critic" in run.rounds[-1]["agents"]


def test_verify_measures_and_leaves_the_run_alone(tmp_path):
    spec = specs.resolve({"task": {"name": "synthetic", "clients": 4}, "epochs": 1})
    follower, leaders = simulate(spec.make_task(), spec.make_algorithm(), spec).game(spec.make_players())
    halves = (follower.half, leaders.half)
    before = [{name: value.clone() for name, value in half.state().items()} for half in halves]
    ranges, trial = Ranges(1e-3, 0.1, 20), Trial(horizon=2, clients=2)
    findings = certify_game(follower, leaders, 0, DemandRatio(), ranges, 0.99, trial)
    assert {f.player for f in findings} >= {"server"}
    # one epoch is far from a best response
    assert max(f.epsilon for f in findings if f.player != "server") > 0.01
    for half, found in zip(halves, before, strict=True):
        assert all(torch.equal(value, found[name]) for name, value in half.state().items())


def test_every_stage_of_players_without_rewards_is_verified(tmp_path):
    """Replaying a stage computes rewards, which the checkpoint of the next one does not have."""
    raw = {"task": {"name": "synthetic", "clients": 3}, "players": "schedule", "epochs": 1, "rounds": 2}
    spec = specs.resolve({**raw, "stages_every": 1, "workers": 1})
    pagefl.run(spec, out=tmp_path / "run")
    trial = Trial(horizon=1, clients=1, grid=1, random=1)
    found = verify.verify(tmp_path / "run", spec, trial, lambda line: None)
    assert {finding["stage"] for finding in found["findings"]} == {1, 2}


def test_a_personal_step_of_ones_own_is_a_deviation():
    """By hand: all clients take the step with the lowest mean loss; a client that would do better gains."""
    steps = personal.choices(0.1, 2)
    losses = np.full((3, len(steps)), 2.0)
    losses[:, 1] = np.nan  # the algorithm's own model is not a choice here
    losses[:, 4] = [0.5, 1.0, 1.0]  # the lowest mean
    losses[1, 7] = 0.4
    policy = SimpleNamespace(personal_lr=0.1, setup=SimpleNamespace(epochs=2))
    follower = SimpleNamespace(policy=policy, terms=SimpleNamespace(penalty=0.0), farewell=lambda round: None)
    clients = SimpleNamespace(try_steps=lambda orders: personal.Trials(losses, 0))
    game = SimpleNamespace(follower=follower, clients=clients)
    first, second = certify_steps(game, 9, np.array([0, 1]))
    assert (first.player, first.epsilon, first.move) == ("client 0, personal step", 0.0, None)
    assert first.payoff == pytest.approx(2.0)
    assert second.epsilon == pytest.approx((1 / 0.4 - 1) / 1)
    assert second.move == (steps[7].lr, steps[7].epochs)


def test_the_certificate_of_page_shared_has_its_personal_steps(tmp_path):
    options = {
        "task": {"name": "synthetic", "clients": 4},
        "players": "page-shared",
        "rounds": 3,
        "epochs": 1,
    }
    spec = specs.resolve({**options, "workers": 1})
    pagefl.run(spec, out=tmp_path / "run")
    trial = Trial(horizon=2, clients=2, random=0, grid=1)
    found = verify.verify(tmp_path / "run", spec, trial, lambda line: None)
    assert found["epsilon_personal"] >= 0
    assert sum(f["player"].endswith("personal step") for f in found["findings"]) == 2
