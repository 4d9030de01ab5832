"""Players that share one policy, and the server that scores uploads: against oracles that do not share their code."""

import numpy as np
import pytest
import torch
from pagefl.core.federation import Uploads, pooled
from pagefl.game.rules import Bias, Ranges
from pagefl.game.scoring import Scoring
from pagefl.game.sharing import FLOOR, KEPT, SharedPlayers
from torch import nn

import pagefl
from pagefl.experiments.spec import resolve
from pagefl.game.players import Seen, Setup, Worth
from pagefl.runtime.run import make_federation, make_game
from tests.federations import data, linear, task

RANGES = Ranges(1e-3, 0.1, 20)
FAIR = Bias()


def setup(clients=6, rounds=200, **changes):
    given = {"clients": clients, "sizes": np.full(clients, 10), "rounds": rounds, "seed": 3, "lr": 0.1, "epochs": 20}
    return Setup(**given, released=False)._replace(**changes)


def leaders(share="experience", clients=6, rounds=200, **settings):
    return SharedPlayers(share=share, **settings).sides(setup(clients, rounds))[0]


def seen(clients, loss=0.5, bias=FAIR):
    return Seen(np.linspace(0.2, 0.8, clients), np.full(clients, loss), bias)


def trained(algorithm="fedavg", sizes=(3, 17, 40, 25, 9), **settings):
    """A federation after a round's training, and what the server can see of its uploads."""
    own = pagefl.Task("small", linear, data(sizes), {**task().settings, "lr": 0.3, "epochs": 3})
    spec = resolve({"algorithm": algorithm, **settings}, own)
    federation = make_federation(own, spec.make_algorithm(), spec)
    ids = np.arange(len(sizes))
    done = federation.train(1, ids, np.full(len(ids), 0.3), np.full(len(ids), 3), candidates_on="game")
    return federation, Uploads(federation, done, "game")


@pytest.mark.parametrize("algorithm", ["fedavg", "feddyn", "scaffold"])
def test_the_slope_is_the_derivative_of_the_servers_loss(algorithm):
    """By finite differences of the loss of the aggregate itself, which the analytic slope never computes."""
    federation, uploads = trained(algorithm)
    weights = np.array([0.1, 0.3, 0.2, 0.25, 0.15])

    def loss(weights):
        model = federation.aggregated(uploads.ids, weights)["model"].double()
        module = nn.Linear(6, 4).double()
        nn.utils.vector_to_parameters(model, module.parameters())
        module.requires_grad_(False)
        return float(nn.functional.cross_entropy(module(uploads.examples.x.double()), uploads.examples.y))

    step = 1e-2
    for i in range(5):
        more, less = weights.copy(), weights.copy()
        more[i] += step
        less[i] -= step
        assert uploads.slope(weights)[i] == pytest.approx((loss(more) - loss(less)) / (2 * step), rel=2e-2, abs=2e-4)


def test_moves_are_how_far_and_whereto_clients_went():
    federation, uploads = trained()
    norm, agreement = uploads.moves()
    rows, sent = federation.uploads["model"].double().numpy(), federation.sent["model"].double().numpy()
    moved = rows - sent
    mean = moved.mean(0)
    assert norm == pytest.approx(np.linalg.norm(moved, axis=1), rel=1e-5)
    assert agreement == pytest.approx(moved @ mean / np.linalg.norm(moved, axis=1) / np.linalg.norm(mean), rel=1e-4)


def test_whoever_is_first_or_last_gets_the_same_weight():
    """Permutation-equivariance: the same uploads in another order, by other numbers, are weighed the same."""
    order = np.array([3, 0, 4, 2, 1])
    federation, uploads = trained()
    sizes = federation.data["train"].sizes.numpy()
    there = Scoring(setup(5, sizes=sizes), RANGES, 0.05)
    weights = [there.follow(round, uploads.ids, uploads)[0] for round in range(5)]
    other, mixed = trained()
    other.uploads["model"][:] = uploads.rows[order]
    mixed.accuracy = uploads.accuracy[order]
    here = Scoring(setup(5, sizes=sizes[order]), RANGES, 0.05)
    again = [here.follow(round, mixed.ids, mixed)[0] for round in range(5)]
    assert np.ptp(weights[-1] / sizes) > 1e-3  # it has learned something
    for first, second in zip(weights, again, strict=True):
        assert first[order] == pytest.approx(second, rel=1e-4)


def test_scoring_lowers_the_servers_loss():
    """One client uploads the opposite of what it has learned, and comes to weigh less."""
    federation, uploads = trained(sizes=(30, 30, 30, 30))
    rows = federation.uploads["model"]
    rows[2] = -rows[2]
    uploads.accuracy = federation.model.accuracies(rows, uploads.examples)
    server = Scoring(setup(4, sizes=np.full(4, 30)), RANGES, 0.05)
    losses = []
    for round in range(60):
        weights, _ = server.follow(round, uploads.ids, uploads)
        federation.server = federation.aggregated(uploads.ids, weights)
        model = federation.server["model"][None]
        game = federation.data["game"]
        losses.append(pooled(federation.model.score(model, game, torch.arange(len(game))), game)[0])
    assert losses[-1] < losses[0] - 0.05
    assert weights[2] == weights.min() < 0.1


def test_everybody_explores_for_itself_around_the_rules_own_settings():
    """As far as a policy can begin there. Clients of a node draw what they draw in a simulation."""
    side = leaders(clients=50)
    who = np.arange(50)
    lr = np.stack([side.lead(round, who, seen(50))[0] for round in range(1, 20)])
    usual = RANGES.lr(RANGES.action(0.1, 20)[:1] * 0.9)[0]
    assert np.log(np.median(lr)) == pytest.approx(np.log(usual), abs=0.1)
    assert np.log(lr).std(1).min() > 0.2  # in every round they differ
    assert np.log(lr).mean(1).std() < 0.1  # and their mean does not
    node = SharedPlayers().sides(setup(1, first=17))[0]
    assert node.lead(1, np.array([0]), seen(50).of(np.array([17])))[0][0] == pytest.approx(lr[0, 17], rel=1e-6)


@pytest.mark.parametrize(("bias", "begins", "least"), [("1:1", 320, 1e-3), ("10:1", 91, 1e-3), ("1:10", 206, 0.0066)])
def test_demand_moves_the_beginning_of_the_landing_and_its_end(bias, begins, least):
    side = leaders(rounds=400, warm_up=400)
    lrs = [float(side.lead(round, np.arange(6), seen(6, bias=Bias.parse(bias)))[0].mean()) for round in range(1, 406)]
    assert np.allclose(lrs[: begins - 1], lrs[0], rtol=1e-2)
    assert (np.diff(np.log(lrs[begins:400])) < 0).all()
    assert lrs[399:] == pytest.approx([least] * 6, rel=0.05)  # and beyond the last round


def test_a_short_run_lands_no_faster_than_a_tenth_a_round():
    """Three rounds are too few to fall a hundredfold in: nobody would learn anything in them."""
    side = leaders(rounds=15)
    lrs = [side.lead(round, np.arange(6), seen(6))[0] for round in range(1, 17)]
    assert np.diff(np.log(lrs[11:15]), axis=0) == pytest.approx(np.full((3, 6), -0.1), abs=1e-3)
    assert (lrs[15] == lrs[14]).all()


@pytest.mark.parametrize(("bias", "round"), [("10:1", 200), ("1:10", 300)])
def test_a_shift_of_demand_acts_in_its_own_round(bias, round):
    side = leaders(rounds=400, warm_up=400)
    before, after = (side.lead(round, np.arange(6), seen(6, bias=Bias.parse(each)))[0] for each in ("1:1", bias))
    assert (after < before / 3).all()


def test_a_lesson_is_what_a_client_saw_did_and_gained():
    side = leaders()
    who = np.array([1, 4])
    lr, epochs, _ = side.lead(1, who, Seen(np.array([0.3, 0.6]), np.array([1.2, 0.4]), FAIR))
    side.learn(who, Worth(*np.ones((3, 2)), np.array([0.9, 0.1])))
    lesson = side.lessons(who)["lesson"].double().numpy()
    before, after = (-np.log(np.array(losses) + FLOOR) for losses in ([1.2, 0.4], [0.9, 0.1]))
    assert lesson[:, :2] == pytest.approx(np.stack([[0.3, 0.6], before / 5], axis=1), rel=1e-5)
    assert RANGES.lr(lesson[:, 2]) == pytest.approx(lr, rel=1e-5)
    assert (RANGES.epochs(lesson[:, 3]) == epochs).all()
    assert lesson[:, 4] == pytest.approx(after - before, rel=1e-5)
    assert (lesson[:, 5] == 1).all()
    side.share(1, side.lessons(who))
    apart = np.ptp(after - before)  # from the mean of the round, in which the second gained more
    assert side.ddpg.replay.tensors["rewards"][0, :2].numpy() == pytest.approx([-apart / 2, apart / 2], rel=1e-4)


def test_clients_are_paid_for_what_they_upload():
    """Ditto's personal model is another than the one whose lr and epochs are played."""
    own = pagefl.Task("small", linear, data((3, 17, 40)), {**task().settings, "lr": 0.3, "epochs": 3})
    spec = resolve({"algorithm": "ditto", "players": "page-shared", "rounds": 200}, own)
    federation = make_federation(own, spec.make_algorithm(), spec)
    led = make_game(federation, spec.make_players(), spec).lead(1, FAIR)
    for i, row in enumerate(federation.uploads["model"]):
        module = nn.Linear(6, 4)
        nn.utils.vector_to_parameters(row, module.parameters())
        x, y = federation.data["train"].client(i)
        after = nn.functional.cross_entropy(module(x), y).item()
        assert led.trained.given.loss[i] == pytest.approx(after, rel=1e-4)
        assert led.lessons["lesson"][i, 4].item() == pytest.approx(
            np.log(led.seen.loss[i] + FLOOR) - np.log(after + FLOOR), rel=1e-4
        )
    assert not np.allclose(led.trained.given.loss, led.trained.train.loss)


def test_who_was_quarantined_has_learned_nothing():
    side = leaders()
    side.lead(1, np.arange(6), seen(6))
    side.learn(np.array([0, 1, 2, 4, 5]), Worth(*np.ones((3, 5)), np.full(5, 0.3)))
    side.share(1, side.lessons(np.arange(6)))
    assert int(side.ddpg.replay.filled()[0]) == 5


@pytest.mark.parametrize(("lr", "epochs"), [(0.1, 20), (0.005, 3), (0.001, 1)])
def test_who_does_not_learn_plays_the_rules_own_settings(lr, epochs):
    """Those at the edge of the ranges too, where a policy that learns cannot begin."""
    side = SharedPlayers().sides(setup(rounds=100, lr=lr, epochs=epochs))[0]
    played, spent, _ = side.lead(1, np.arange(6), seen(6))
    assert played == pytest.approx(np.full(6, lr), rel=0.05)
    assert (spent == epochs).all()


@pytest.mark.parametrize(("rounds", "explores"), [(200, 20), (100, 0)])
def test_exploring_ends_and_a_run_too_short_to_learn_from_does_not_begin_it(rounds, explores):
    side = leaders(rounds=rounds)
    for round in range(1, 31):
        moves = np.log(side.lead(round, np.arange(6), seen(6))[0])
        side.learn(np.arange(6), Worth(*np.ones((3, 6)), np.full(6, 0.4)))
        assert bool(side.lessons(np.arange(6))["lesson"][:, -1].any()) == (round <= explores)
        assert (np.ptp(moves) > 0.1) == (round <= explores)


@pytest.mark.parametrize(("share", "best"), [("experience", 0.003), ("experience", 0.03), ("weights", 0.01)])
def test_the_policy_finds_what_pays(share, best):
    """Where a client's loss is a known function of its lr, and changes with the round as losses do."""
    side, who = leaders(share, clients=20, rounds=1200), np.arange(20)
    for round in range(1, 122):
        before = 2 * 0.98**round * np.linspace(0.5, 1.5, 20)
        lr, _, _ = side.lead(round, who, Seen(np.linspace(0.2, 0.8, 20), before, FAIR))
        after = before * np.exp(0.3 * np.log(lr / best) ** 2 - 1)
        side.learn(who, Worth(*np.ones((3, 20)), after))
        side.share(round, side.lessons(who))
    assert np.log(lr).mean() == pytest.approx(np.log(best), abs=0.6)  # it began at 0.08


def test_a_hostile_lesson_is_left_out_and_a_crowd_does_not_shorten_memory():
    side = leaders(clients=3 * KEPT)
    rows = torch.rand(3 * KEPT, 6)
    rows[0, 2] = torch.nan
    side.share(1, {"lesson": rows})
    assert int(side.ddpg.replay.filled()[0]) == KEPT
    few = leaders()
    bad = torch.rand(6, 6)
    bad[1, 5], bad[2, -1] = torch.inf, 0.0
    few.share(1, {"lesson": bad})
    assert int(few.ddpg.replay.filled()[0]) == 4


def test_agents_that_are_averaged_are_the_mean_of_what_clients_trained():
    """Each client trains what it is sent on its own lessons, as it would alone; the mean is what is sent next."""
    together = leaders("weights", clients=4, updates=2)
    alone = [SharedPlayers(share="weights", updates=2).sides(setup(1, first=i))[0] for i in range(4)]
    losses = np.random.default_rng(0).uniform(0.1, 1, (14, 4))
    for round in range(1, 15):
        everybody = np.arange(4)
        shown = Seen(np.linspace(0.2, 0.8, 4), losses[round - 1], FAIR)
        moves = together.lead(round, everybody, shown)[:2]
        together.learn(everybody, Worth(*np.ones((3, 4)), losses[round - 1] / 2))
        given = together.lessons(everybody)
        for i, client in enumerate(alone):
            for name, value in client.shared.items():  # as a node receives it
                value.copy_(together.shared[name])
            lr, epochs, _ = client.lead(round, np.array([0]), shown.of(np.array([i])))
            client.learn(np.array([0]), Worth(*np.ones((3, 1)), losses[round - 1, [i]] / 2))
            assert lr[0] == pytest.approx(moves[0][i], rel=1e-5)
            assert epochs[0] == moves[1][i]
            for name, rows in client.lessons(np.array([0])).items():
                assert torch.allclose(rows[0], given[name][i], atol=1e-6), name
        together.share(round, given)
        for name, value in together.shared.items():
            assert torch.allclose(value, given[name].mean(0))
    assert not torch.equal(together.shared["agent.actor.weight0"], leaders("weights", clients=4).shared["agent.actor.weight0"])


def test_no_agent_grows_with_the_number_of_clients():
    """The server's network and the policy are of one size at 10 and at 1000 clients."""
    few, many = (SharedPlayers().sides(setup(clients)) for clients in (10, 1000))
    assert {n: v.shape for n, v in few[1].tensors.items()} == {n: v.shape for n, v in many[1].tensors.items()}
    assert {n: v.shape for n, v in few[0].shared.items()} == {n: v.shape for n, v in many[0].shared.items()}


def test_frozen_players_neither_explore_nor_learn():
    own = task()
    spec = resolve({"algorithm": "fedavg", "players": "page-shared", "rounds": 200}, own)
    federation = make_federation(own, spec.make_algorithm(), spec)
    game = make_game(federation, spec.make_players(), spec)
    for round in range(1, 15):
        game.follow(round, game.lead(round, FAIR), FAIR)
    for side in (game.leaders, game.follower):
        side.freeze()
    learned = {name: value.clone() for name, value in game.tensors.items()}
    for round in range(15, 18):
        game.follow(round, game.lead(round, FAIR), FAIR)
    assert all(torch.equal(value, game.tensors[name]) for name, value in learned.items())
