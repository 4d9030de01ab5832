"""The game as PettingZoo and Gymnasium environments: their own suites, and the same bits as a run with the
same moves.
"""

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from federations import CLASSES, FEATURES, task
from gymnasium.utils.env_checker import check_env
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test
from pettingzoo.test.state_test import state_test

import pagefl
from pagefl import UserError
from pagefl.core import rng
from pagefl.experiments.spec import resolve
from pagefl.game.pettingzoo import SERVER, FederatedAEC, FederatedParallel, SingleSide
from pagefl.game.players.random import Random
from pagefl.game.ranges import Ranges
from pagefl.runtime import halves
from pagefl.runtime.simulation import one_numeric_mode, simulate

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "train_one_side.py"
RANGES = Ranges(0.01, 1.0, 4)
RANDOM = {"name": "random", "lr_min": 0.01, "lr_max": 1.0, "epochs_max": 4}
REWARDED = {"stop": "equilibrium"}  # then there are rewards though nobody learns
SEED, ROUNDS, CLIENTS = 3, 4, 5

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of PettingZoo's taste in names and shapes


@pytest.fixture(autouse=True)
def _numeric_mode():
    """That of a run: the same bits."""
    with one_numeric_mode():
        yield


def maker(algorithm="fedavg", **options):
    """From a seed to a federation, as the environments want it; `calls` tells how often."""
    small = task(**options.pop("data", {}))

    def make(seed):
        make.calls += 1
        spec = resolve({"algorithm": algorithm, "rounds": ROUNDS, "seed": seed, **options}, small)
        simulation = simulate(small, spec.make_algorithm(), spec)
        clients = simulation.clients
        return clients, simulation.server, halves.setup_of(spec, clients.size), halves.terms_of(spec)

    make.calls = 0
    return make


def random_moves(round, clients=CLIENTS):
    """What the random players of a run do in this round, by name."""
    who = range(clients)
    moves = 2 * rng.uniforms(rng.keys(SEED, "random player", round, who), 2) - 1
    scores = 2 * rng.uniforms(rng.keys(SEED, "random server", round, who), 1)[:, 0] - 1
    return {**{f"client {i}": moves[i] for i in who}, SERVER: scores}


def play(env, moves):
    """An episode; every agent's rewards, round by round."""
    paid = {agent: [] for agent in env.possible_agents}
    for turn, agent in enumerate(env.agent_iter()):
        _, reward, _, truncated, _ = env.last()
        round = 1 + turn // len(env.possible_agents)
        if round > 1:
            paid[agent].append(reward)
        env.step(None if truncated else moves(round)[agent])
    return paid


def test_pettingzoo_accepts_the_game():
    api_test(FederatedAEC(maker(), RANGES), num_cycles=40)
    seed_test(lambda: FederatedAEC(maker(), RANGES), num_cycles=40)


def test_pettingzoo_accepts_the_parallel_view():
    parallel_api_test(FederatedParallel(maker(), RANGES), num_cycles=40)
    parallel_seed_test(lambda: FederatedParallel(maker(), RANGES), num_cycles=40)
    state_test(FederatedAEC(maker(), RANGES), FederatedParallel(maker(), RANGES))


@pytest.mark.parametrize("side", ["client 3", "server"])
def test_gymnasium_accepts_one_side(side):
    check_env(SingleSide(maker(), RANGES, side), skip_render_check=True)


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "ditto", "fedrecon"])
def test_constant_actions_are_a_run_with_those_settings(algorithm):
    """Also in the second episode: nothing of the first is left."""
    data = {"module": "mlp", "sizes": (20,) * CLIENTS}
    move = np.float32([0.4, -0.3])
    settings = {"lr": float(RANGES.lr(move[:1].astype(float))[0]), "epochs": int(RANGES.epochs(move[1:])[0])}
    run = pagefl.run(task=task(**data), algorithm=algorithm, rounds=ROUNDS, seed=SEED, **REWARDED, **settings)
    env = FederatedAEC(maker(algorithm, data=data, **settings), RANGES, SEED)
    moves = {**dict.fromkeys(env.possible_agents, move), SERVER: np.zeros(CLIENTS, np.float32)}
    for _ in range(2):
        env.reset()
        paid = play(env, lambda round: moves)
        assert paid[SERVER] == run.history["reward_server"].tolist()
        for half in (env.stages.clients, env.stages.server):
            for name, value in half.state().items():
                assert torch.equal(value, run.state[name]), name


@pytest.mark.parametrize("participation", [1.0, 0.6])
@pytest.mark.parametrize("view", [FederatedAEC, FederatedParallel])
def test_random_actions_are_a_run_of_random_players(view, participation):
    env = view(maker(participation=participation), RANGES, SEED)
    run = pagefl.run(
        task=task(), players=RANDOM, rounds=ROUNDS, seed=SEED, participation=participation, **REWARDED
    )
    env.reset()
    if view is FederatedAEC:
        paid = play(env, random_moves)
    else:
        stages = [env.step(random_moves(round)) for round in range(1, ROUNDS + 1)]
        paid = {agent: [rewards[agent] for _, rewards, *_ in stages] for agent in env.possible_agents}
        assert [list(truncated.values()) for *_, truncated, _ in stages] == [
            [last] * 6 for last in (False, False, False, True)
        ]
    assert paid[SERVER] == run.history["reward_server"].tolist()
    for i in range(CLIENTS):
        # who does not take part earns nothing
        expected = run.clients.query(f"client == {i}")["reward"].fillna(0.0)
        assert paid[f"client {i}"] == expected.tolist()
    assert torch.equal(env.stages.server.model_row, run.state["server.model"])


def test_what_is_observed_and_told():
    """Accuracies, recomputed from rows and data: of W on a client's own data, of the uploads on the server's
    game half.
    """
    env = FederatedAEC(maker(), RANGES, SEED)
    splits = task().data

    def accuracy(row, x, y):
        weight, bias = row[: CLASSES * FEATURES].view(CLASSES, FEATURES), row[CLASSES * FEATURES :]
        return float(((x @ weight.T + bias).argmax(1) == y).double().mean())

    env.reset()
    for turn in range(2 * len(env.possible_agents)):
        agent = env.agent_selection
        clients, server = env.stages.clients, env.stages.server
        if agent == SERVER:
            expected = [accuracy(row, splits.game.x, splits.game.y) for row in server.uploads["model"]]
            own = [
                accuracy(row, *splits.train.client(i)) for i, row in enumerate(clients.block.storage.personal)
            ]
            assert [env.infos[f"client {i}"]["accuracy"] for i in range(CLIENTS)] == pytest.approx(own)
        else:
            expected = [accuracy(server.model_row, *splits.train.client(int(agent.split()[1])))]
        np.testing.assert_allclose(env.observe(agent), expected, rtol=1e-6)
        env.step(random_moves(1 + turn // 6)[agent])
    W = server.model_row  # noqa: N806 (the paper's letter)
    assert env.infos[SERVER]["accuracy"] == pytest.approx(accuracy(W, splits.game.x, splits.game.y))
    assert env.infos[SERVER]["test_accuracy"] == pytest.approx(
        accuracy(W, splits.server_test.x, splits.server_test.y)
    )
    shown = [env.observe(agent) for agent in env.possible_agents]
    np.testing.assert_array_equal(env.state(), np.concatenate(shown))


def test_leaders_are_paid_when_all_have_moved_and_the_server_after_its_move():
    env = FederatedAEC(maker(), RANGES, SEED)
    env.reset()
    paid = []
    for agent in env.possible_agents * ROUNDS:
        assert not any(env.truncations.values())
        env.step(random_moves(1)[agent])
        paid.append([name for name, reward in env.rewards.items() if reward])
    assert paid == [[], [], [], [], env.possible_agents[:-1], [SERVER]] * ROUNDS
    assert all(env.truncations.values())


def test_reset_builds_anew_only_for_another_seed():
    make = maker()
    env = FederatedParallel(make, RANGES, SEED)
    first = env.reset()[0]
    rewards = env.step(random_moves(1))[1]
    again = env.reset(seed=SEED)[0]
    assert make.calls == 1
    assert all(np.array_equal(first[agent], again[agent]) for agent in first)
    assert env.step(random_moves(1))[1] == rewards
    env.reset(seed=SEED + 1)
    assert make.calls == 2
    assert env.step(random_moves(1))[1] != rewards


@pytest.mark.parametrize("side", ["client 3", "server"])
def test_one_side_against_random_players_is_the_whole_game_with_their_moves(side):
    whole = FederatedAEC(maker(), RANGES, SEED)
    mine = np.full(whole.action_space(side).shape, 0.7) * np.resize([1, -1], whole.action_space(side).shape)
    whole.reset()
    expected = play(whole, lambda round: {**random_moves(round), side: mine})[side]
    env = SingleSide(maker(), RANGES, side, Random(0.01, 1.0, 4), SEED)
    for _ in range(2):
        env.reset()
        answers = [env.step(mine) for _ in range(ROUNDS)]
        assert [reward for _, reward, *_ in answers] == expected
        assert [truncated for *_, truncated, _ in answers] == [False, False, False, True]


def test_others_may_learn_but_hear_nothing_of_what_they_do_not_play():
    env = SingleSide(maker(), RANGES, "client 3", resolve({"players": "page"}).make_players(), SEED)
    env.reset()
    env.step(np.zeros(2))
    waiting = env.stages.client_policy.others.learner.waiting["ready"]
    assert waiting.tolist() == [True, True, True, False, True]
    assert env.stages.server_policy.others.learner.waiting["ready"].all()


@pytest.mark.parametrize("action", [np.zeros(3), np.array([0.0, 1.5]), np.array([np.nan, 0.0])])
def test_a_bad_action_is_refused(action):
    env = SingleSide(maker(), RANGES, "client 3")
    env.reset()
    with pytest.raises(
        UserError, match=r"client 3: action = .* expected an array of shape \(2,\) in \[-1, 1\]"
    ):
        env.step(action)


def test_an_unknown_side_is_refused():
    with pytest.raises(UserError, match="side = 'client 5': expected 'server', or 'client 0' to 'client 4'"):
        SingleSide(maker(), RANGES, "client 5")


@pytest.mark.slow
def test_the_example():
    """A library that knows nothing of federations trains one side of one."""
    agent = runpy.run_path(str(EXAMPLE))["agent"]
    assert agent.num_timesteps == 300
    assert agent._n_updates > 200
