"""Players that share one policy, and the server that scores uploads: against oracles that do not share their
code.
"""

import numpy as np
import pytest
import torch
from torch import nn

import pagefl
from pagefl.core.evaluate import Scores
from pagefl.core.server import pooled
from pagefl.experiments.spec import resolve
from pagefl.game.game import Game
from pagefl.game.players.scoring import Scoring
from pagefl.game.players.shared import FLOOR, KEPT, PageShared
from pagefl.game.protocol import Observation, Outcome, Setup
from pagefl.game.ranges import Ranges
from pagefl.game.rewards import DemandRatio
from pagefl.game.uploads import Uploads
from pagefl.runtime.simulation import simulate
from tests.federations import Federation, data, linear, task

RANGES = Ranges(1e-3, 0.1, 20)
FAIR = DemandRatio()


def setup(clients=6, rounds=200, **changes):
    return Setup(clients=clients, rounds=rounds, seed=3, lr=0.1, epochs=20)._replace(**changes)


def policies(share="experience", clients=6, rounds=200, **settings):
    players = PageShared(share=share, **settings)
    return players.client_policy(setup(clients, rounds)), players.server_policy(setup(clients, rounds))


def leaders(*arguments, **settings):
    return policies(*arguments, **settings)[0]


def observed(accuracy, loss, demand=FAIR):
    return Observation(lambda: Scores(loss, accuracy), demand)


def seen(clients, loss=0.5, demand=FAIR):
    return observed(np.linspace(0.2, 0.8, clients), np.full(clients, loss), demand)


def outcome(upload_loss):
    return Outcome(*np.ones((3, len(upload_loss))), upload_loss)


def trained(algorithm="fedavg", sizes=(3, 17, 40, 25, 9), **settings):
    """A federation after a round's training, and what the server can see of its uploads."""
    own = pagefl.Task("small", linear, data(sizes), {**task().settings, "lr": 0.3, "epochs": 3})
    spec = resolve({"algorithm": algorithm, **settings}, own)
    federation = Federation.of_task(own, spec.make_algorithm(), spec)
    ids = np.arange(len(sizes))
    federation.train(1, ids, np.full(len(ids), 0.3), np.full(len(ids), 3))
    return federation, Uploads(federation.server, 1, ids, np.array(sizes, float))


@pytest.mark.parametrize("algorithm", ["fedavg", "feddyn", "scaffold"])
def test_the_slope_is_the_derivative_of_the_servers_loss(algorithm):
    """By finite differences of the loss of the aggregate itself, which the analytic slope never computes."""
    federation, uploads = trained(algorithm)
    weights, examples = np.array([0.1, 0.3, 0.2, 0.25, 0.15]), federation.server.samples["game"]

    def loss(weights):
        model = federation.server.aggregated(uploads.clients, weights)["model"].double()
        module = nn.Linear(6, 4).double()
        nn.utils.vector_to_parameters(model, module.parameters())
        module.requires_grad_(False)
        return float(nn.functional.cross_entropy(module(examples.x.double()), examples.y))

    step = 1e-2
    for i in range(5):
        more, less = weights.copy(), weights.copy()
        more[i] += step
        less[i] -= step
        assert uploads.slope(weights)[i] == pytest.approx(
            (loss(more) - loss(less)) / (2 * step), rel=2e-2, abs=2e-4
        )


def test_moves_are_how_far_and_whereto_clients_went():
    federation, uploads = trained()
    norm, agreement = uploads.moves
    rows, sent = (
        federation.uploads["model"].double().numpy(),
        federation.server.sent["model"].double().numpy(),
    )
    moved = rows - sent
    mean = moved.mean(0)
    assert norm == pytest.approx(np.linalg.norm(moved, axis=1), rel=1e-5)
    assert agreement == pytest.approx(
        moved @ mean / np.linalg.norm(moved, axis=1) / np.linalg.norm(mean), rel=1e-4
    )


def weighed(server, round, uploads):
    """Learn from the uploads, then weigh them."""
    server.observe(round, uploads.clients, uploads)
    return server.act(round, uploads.clients, uploads)


def test_whoever_is_first_or_last_gets_the_same_weight():
    """Permutation-equivariance: the same uploads in another order, by other numbers, are weighed the same."""
    order = np.array([3, 0, 4, 2, 1])
    _, uploads = trained()
    sizes = uploads.sizes
    there = Scoring(setup(5), 1.0, 0.05)
    weights = [weighed(there, round, uploads) for round in range(5)]
    other, mixed = trained()
    other.uploads["model"][:] = uploads.rows[order]
    mixed.sizes = sizes[order]
    here = Scoring(setup(5), 1.0, 0.05)
    again = [weighed(here, round, mixed) for round in range(5)]
    assert np.ptp(weights[-1] / sizes) > 1e-3  # it has learned something
    for first, second in zip(weights, again, strict=True):
        assert first[order] == pytest.approx(second, rel=1e-4)


def test_scoring_lowers_the_servers_loss():
    """One client uploads the opposite of what it has learned, and comes to weigh less."""
    federation, uploads = trained(sizes=(30, 30, 30, 30))
    rows = federation.uploads["model"]
    rows[2] = -rows[2]
    server, half = Scoring(setup(4), 1.0, 0.05), federation.server
    losses = []
    for round in range(60):
        weights = weighed(server, round, uploads)
        half.shared = half.aggregated(uploads.clients, weights)
        game = half.data["game"]
        losses.append(pooled(half.model.score(half.model_row[None], game, torch.arange(len(game))), game)[0])
    assert losses[-1] < losses[0] - 0.05
    assert weights[2] == weights.min() < 0.1


def test_everybody_explores_for_itself_around_the_rules_own_settings():
    """As far as a policy can begin there. Clients of a node draw what they draw in a simulation."""
    side = leaders(clients=50)
    who = np.arange(50)
    lr = np.stack([side.act(round, who, seen(50)).lr for round in range(1, 20)])
    usual = RANGES.lr(RANGES.action(0.1, 20)[:1] * 0.9)[0]
    assert np.log(np.median(lr)) == pytest.approx(np.log(usual), abs=0.1)
    assert np.log(lr).std(1).min() > 0.2  # in every round they differ
    assert np.log(lr).mean(1).std() < 0.1  # and their mean does not
    node = PageShared().client_policy(setup(1, first=17))
    assert node.act(1, np.array([0]), seen(50).of(np.array([17]))).lr[0] == pytest.approx(lr[0, 17], rel=1e-6)


@pytest.mark.parametrize(
    ("bias", "begins", "least"), [("1:1", 320, 1e-3), ("10:1", 91, 1e-3), ("1:10", 206, 0.0066)]
)
def test_demand_moves_the_beginning_of_the_decay_and_its_end(bias, begins, least):
    side, demand = leaders(rounds=400, warm_up=400), DemandRatio.parse(bias)
    lrs = [float(side.act(round, np.arange(6), seen(6, demand=demand)).lr.mean()) for round in range(1, 406)]
    assert np.allclose(lrs[: begins - 1], lrs[0], rtol=1e-2)
    assert (np.diff(np.log(lrs[begins:400])) < 0).all()
    assert lrs[399:] == pytest.approx([least] * 6, rel=0.05)  # and beyond the last round


def test_a_short_run_decays_no_faster_than_a_tenth_a_round():
    """Three rounds are too few to fall a hundredfold in: nobody would learn anything in them."""
    side = leaders(rounds=15)
    lrs = [side.act(round, np.arange(6), seen(6)).lr for round in range(1, 17)]
    assert np.diff(np.log(lrs[11:15]), axis=0) == pytest.approx(np.full((3, 6), -0.1), abs=1e-3)
    assert (lrs[15] == lrs[14]).all()


@pytest.mark.parametrize(("bias", "round"), [("10:1", 200), ("1:10", 300)])
def test_a_shift_of_demand_acts_in_its_own_round(bias, round):
    side, demands = leaders(rounds=400, warm_up=400), [DemandRatio.parse(each) for each in ("1:1", bias)]
    before, after = (side.act(round, np.arange(6), seen(6, demand=demand)).lr for demand in demands)
    assert (after < before / 3).all()


def test_a_transition_is_what_a_client_saw_did_and_gained():
    side, server = policies()
    who = np.array([1, 4])
    lr, epochs = side.act(1, who, observed(np.array([0.3, 0.6]), np.array([1.2, 0.4])))
    side.reward(1, who, outcome(np.array([0.9, 0.1])))
    transition = side.experience(who)["transition"].double().numpy()
    before, after = (-np.log(np.array(losses) + FLOOR) for losses in ([1.2, 0.4], [0.9, 0.1]))
    assert transition[:, :2] == pytest.approx(np.stack([[0.3, 0.6], before / 5], axis=1), rel=1e-5)
    assert RANGES.lr(transition[:, 2]) == pytest.approx(lr, rel=1e-5)
    assert (RANGES.epochs(transition[:, 3]) == epochs).all()
    assert transition[:, 4] == pytest.approx(after - before, rel=1e-5)
    assert (transition[:, 5] == 1).all()
    server.update(1, side.experience(who))
    apart = np.ptp(after - before)  # from the mean of the round, in which the second gained more
    assert server.teacher.ddpg.replay.tensors["rewards"][0, :2].numpy() == pytest.approx(
        [-apart / 2, apart / 2], rel=1e-4
    )


def test_clients_are_paid_for_what_they_upload():
    """Ditto's personal model is another than the one whose lr and epochs are played."""
    own = pagefl.Task("small", linear, data((3, 17, 40)), {**task().settings, "lr": 0.3, "epochs": 3})
    spec = resolve({"algorithm": "ditto", "players": "page-shared", "rounds": 200}, own)
    follower, leaders = simulate(own, spec.make_algorithm(), spec).game(spec.make_players())
    Game(follower, leaders).meet()
    before = leaders.half.evaluate(1, "reward")["reward"]
    told, learn = [], leaders.policy.reward
    leaders.policy.reward = lambda round, clients, outcome: (
        told.append(outcome),
        learn(round, clients, outcome),
    )
    answer = leaders.answer(follower.orders(1, FAIR))
    for i, row in enumerate(follower.half.uploads["model"]):
        module = nn.Linear(6, 4)
        nn.utils.vector_to_parameters(row, module.parameters())
        x, y = own.data.train.client(i)
        after = nn.functional.cross_entropy(module(x), y).item()
        assert told[0].upload_loss[i] == pytest.approx(after, rel=1e-4)
        assert answer.experience["transition"][i, 4].item() == pytest.approx(
            np.log(before.loss[i] + FLOOR) - np.log(after + FLOOR), rel=1e-4
        )
    assert not np.allclose(told[0].upload_loss, told[0].loss)


def test_who_was_quarantined_has_learned_nothing():
    side, server = policies()
    side.act(1, np.arange(6), seen(6))
    side.reward(1, np.array([0, 1, 2, 4, 5]), outcome(np.full(5, 0.3)))
    server.update(1, side.experience(np.arange(6)))
    assert int(server.teacher.ddpg.replay.filled()[0]) == 5


@pytest.mark.parametrize(("lr", "epochs"), [(0.1, 20), (0.005, 3), (0.001, 1)])
def test_who_does_not_learn_plays_the_rules_own_settings(lr, epochs):
    """Those at the edge of the ranges too, where a policy that learns cannot begin."""
    side = PageShared().client_policy(setup(rounds=100, lr=lr, epochs=epochs))
    played, spent = side.act(1, np.arange(6), seen(6))
    assert played == pytest.approx(np.full(6, lr), rel=0.05)
    assert (spent == epochs).all()


@pytest.mark.parametrize(("rounds", "explores"), [(200, 20), (100, 0)])
def test_exploring_ends_and_a_run_too_short_to_learn_from_does_not_begin_it(rounds, explores):
    side = leaders(rounds=rounds)
    for round in range(1, 31):
        moves = np.log(side.act(round, np.arange(6), seen(6)).lr)
        side.reward(round, np.arange(6), outcome(np.full(6, 0.4)))
        assert bool(side.experience(np.arange(6))["transition"][:, -1].any()) == (round <= explores)
        assert (np.ptp(moves) > 0.1) == (round <= explores)


@pytest.mark.slow
@pytest.mark.parametrize(("share", "best"), [("experience", 0.003), ("experience", 0.03), ("weights", 0.01)])
def test_the_policy_finds_what_pays(share, best):
    """Where a client's loss is a known function of its lr, and changes with the round as losses do."""
    (side, server), who = policies(share, clients=20, rounds=1200), np.arange(20)
    for round in range(1, 122):
        before = 2 * 0.98**round * np.linspace(0.5, 1.5, 20)
        side.receive(server.sent)
        lr, _ = side.act(round, who, observed(np.linspace(0.2, 0.8, 20), before))
        after = before * np.exp(0.3 * np.log(lr / best) ** 2 - 1)
        side.reward(round, who, outcome(after))
        server.update(round, side.experience(who))
    assert np.log(lr).mean() == pytest.approx(np.log(best), abs=0.6)  # it began at 0.08


def test_a_hostile_transition_is_left_out_and_a_crowd_does_not_shorten_memory():
    _, server = policies(clients=3 * KEPT)
    rows = torch.rand(3 * KEPT, 6)
    rows[0, 2] = torch.nan
    server.update(1, {"transition": rows})
    assert int(server.teacher.ddpg.replay.filled()[0]) == KEPT
    _, few = policies()
    bad = torch.rand(6, 6)
    bad[1, 5], bad[2, -1] = torch.inf, 0.0
    few.update(1, {"transition": bad})
    assert int(few.teacher.ddpg.replay.filled()[0]) == 4


def test_agents_that_are_averaged_are_the_mean_of_what_clients_trained():
    """Each client trains what it is sent on its own transitions, as it would alone; the mean is what is sent
    next.
    """
    together, server = policies("weights", clients=4, updates=2)
    alone = [PageShared(share="weights", updates=2).client_policy(setup(1, first=i)) for i in range(4)]
    losses = np.random.default_rng(0).uniform(0.1, 1, (14, 4))
    for round in range(1, 15):
        everybody = np.arange(4)
        shown = observed(np.linspace(0.2, 0.8, 4), losses[round - 1])
        together.receive(server.sent)
        moves = together.act(round, everybody, shown)
        together.reward(round, everybody, outcome(losses[round - 1] / 2))
        given = together.experience(everybody)
        for i, client in enumerate(alone):
            client.receive(server.sent)  # as a node does
            lr, epochs = client.act(round, np.array([0]), shown.of(np.array([i])))
            client.reward(round, np.array([0]), outcome(losses[round - 1, [i]] / 2))
            assert lr[0] == pytest.approx(moves.lr[i], rel=1e-5)
            assert epochs[0] == moves.epochs[i]
            for name, rows in client.experience(np.array([0])).items():
                assert torch.allclose(rows[0], given[name][i], atol=1e-6), name
        server.update(round, given)
        for name, value in server.sent.items():
            assert torch.allclose(value, given[name].mean(0))
    fresh = policies("weights", clients=4)[1]
    assert not torch.equal(server.sent["agent.actor.weight0"], fresh.sent["agent.actor.weight0"])


def test_no_agent_grows_with_the_number_of_clients():
    """The server's network and the policy are of one size at 10 and at 1000 clients."""
    few, many = (policies(clients=clients) for clients in (10, 1000))
    nets = [
        {n: v.shape for n, v in server.tensors.items() if ".replay." not in n} for _, server in (few, many)
    ]
    assert nets[0] == nets[1]
    assert {n: v.shape for n, v in few[1].sent.items()} == {n: v.shape for n, v in many[1].sent.items()}
    assert {n: v.shape for n, v in few[0].received.items()} == {
        n: v.shape for n, v in many[0].received.items()
    }


def test_frozen_players_neither_explore_nor_learn():
    own = task()
    spec = resolve({"algorithm": "fedavg", "players": "page-shared", "rounds": 200}, own)
    follower, leaders = simulate(own, spec.make_algorithm(), spec).game(spec.make_players())
    game = Game(follower, leaders)
    for round in range(1, 15):
        game.play(round, FAIR)
    for side in (leaders, follower):
        side.policy.freeze()
    learned = {name: value.clone() for name, value in agents(game).items()}
    assert learned
    for round in range(15, 18):
        game.play(round, FAIR)
    assert all(torch.equal(value, agents(game)[name]) for name, value in learned.items())


def agents(game):
    return {name: value for name, value in game.state().items() if "_agent." in name}
