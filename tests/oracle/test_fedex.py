"""FedEx against the paper's algorithm 2, one client after the other; what may reach the distribution; that it
learns."""

import math

import numpy as np
import pytest
import torch
from federations import SETTINGS, task

import pagefl
from pagefl.core.evaluate import Scores
from pagefl.game.players.fedex import FedEx
from pagefl.game.protocol import Observation, Outcome, Setup

SETUP = Setup(clients=6, rounds=40, seed=5, lr=0.1, epochs=8)
PLAYERS = FedEx(lr_min=0.01, lr_max=0.3, epochs_max=8)
UNSEEN = Observation(lambda: Scores(np.zeros(0), np.zeros(0)))


def outcome(loss: np.ndarray) -> Outcome:
    """Another loss of the client's own model: what is learned from is that of the upload."""
    return Outcome(1 / loss, np.zeros_like(loss), loss + 1, loss, 0 * loss, 1 + 0 * loss, 0 * loss)


def by_the_paper(rounds: list[tuple[list[int], list[float]]], count: int, discount: float) -> np.ndarray:
    """The distribution after these rounds, each of which has the clients' configurations and losses."""
    theta, means = np.full(count, 1 / count), []
    for drawn, losses in rounds:
        past = [discount ** (len(means) - 1 - s) for s in range(len(means))]
        baseline = sum(d * mean for d, mean in zip(past, means, strict=True)) / sum(past) if means else 0.0
        gradient = np.zeros(count)
        for j, loss in zip(drawn, losses, strict=True):
            gradient[j] += (loss - baseline) / theta[j] / len(losses)
        theta = theta * np.exp(-math.sqrt(2 * math.log(count)) / max(abs(gradient)) * gradient)
        theta /= theta.sum()
        means.append(sum(losses) / len(losses))
    return theta


@pytest.mark.parametrize("discount", [0.0, 0.5, 0.9])
def test_the_distribution_is_the_papers(discount):
    """With other participants in every round."""
    players = FedEx(lr_min=0.01, lr_max=0.3, epochs_max=8, discount=discount)
    configurations = players.configurations(SETUP)
    clients, server = players.client_policy(SETUP), players.server_policy(SETUP)
    chance, played = np.random.default_rng(0), []
    for round in range(1, 9):
        who = np.sort(chance.choice(6, 4, replace=False))
        clients.receive(server.sent)
        moves = clients.act(round, who, UNSEEN)
        loss = chance.uniform(0.5, 2.0, 4)
        clients.reward(round, who, outcome(loss))
        server.update(round, clients.experience(who))
        pairs = zip(moves.lr, moves.epochs, strict=True)
        played.append(([configurations.index(pair) for pair in pairs], loss.tolist()))
        expected = by_the_paper(played, len(configurations), discount)
        assert server.probabilities == pytest.approx(expected, rel=1e-4, abs=1e-12)
        assert server.sent["probabilities"].sum() == pytest.approx(1.0)
    assert len({j for drawn, _ in played for j in drawn}) > 5


def test_a_run_learns_by_the_losses_that_it_records():
    """The loss after training, on the hold-out where there is one."""
    run = pagefl.run(
        task=task(), players={"name": "fedex", "epochs_max": 4}, rounds=6, participation=0.6, holdout=0.3
    )
    lr = SETTINGS["lr"]
    configurations = FedEx(lr / 30, 3 * lr, 4).configurations(Setup(5, 6, 0, lr, SETTINGS["epochs"]))
    played = []
    for _, rows in run.clients.query("trained").groupby("round"):
        drawn = [
            int(np.argmin([abs(math.log(lr / a)) + abs(epochs - b) for a, b in configurations]))
            for lr, epochs in zip(rows.lr, rows.epochs, strict=True)
        ]
        played.append((drawn, rows.train_loss.tolist()))
    theta = run.state["server_agent.log_probabilities"].exp().numpy()
    assert theta == pytest.approx(by_the_paper(played, len(configurations), 0.5), rel=1e-3, abs=1e-9)
    assert run.clients.query("trained").weight.nunique() > 1  # by size


def test_configurations_are_around_the_runs_own():
    assert PLAYERS.configurations(SETUP) == [
        (pytest.approx(lr), epochs) for lr in (0.01, 0.03, 0.1, 0.3) for epochs in (1, 2, 8)
    ]
    assert FedEx(1e-9, 1e9, 1).configurations(SETUP) == [
        (pytest.approx(0.1 * factor), 1) for factor in (0.03, 0.1, 0.3, 1, 3, 10, 30)
    ]


def test_it_settles_on_the_best_configuration():
    """Losses of a round are noisy and fall from round to round; one configuration is clearly the best."""
    setup = SETUP._replace(clients=20)
    for seed in range(10):
        own = setup._replace(seed=seed)
        configurations = PLAYERS.configurations(own)
        best = configurations[7]
        clients, server = PLAYERS.client_policy(own), PLAYERS.server_policy(own)
        everybody, chance = np.arange(20), np.random.default_rng(seed)
        for round in range(1, 41):
            clients.receive(server.sent)
            moves = clients.act(round, everybody, UNSEEN)
            away = np.abs(np.log(moves.lr / best[0])) + np.abs(np.log(moves.epochs / best[1]))
            loss = np.exp(-round / 40) * (0.5 + 0.5 * away + chance.uniform(0, 0.1, 20))
            clients.reward(round, everybody, outcome(loss))
            server.update(round, clients.experience(everybody))
        assert server.probabilities[7] > 0.99, seed
        assert server.settled
        clients.receive(server.sent)
        assert set(clients.act(99, everybody, UNSEEN).lr) == {best[0]}


def test_frozen_clients_play_the_most_likely():
    clients = PLAYERS.client_policy(SETUP)
    chances = torch.full([12], 0.08)
    chances[5] = 0.12
    clients.receive({"probabilities": chances})
    clients.freeze()
    moves = clients.act(1, np.arange(6), UNSEEN)
    assert set(zip(moves.lr, moves.epochs, strict=True)) == {PLAYERS.configurations(SETUP)[5]}


HOSTILE = [[0.0, 1.0], [13.0, 1.0], [1.5, 1.0], [-1.0, 1.0], [np.nan, 1.0], [2.0, np.nan], [2.0, -1.0]]
HOSTILE += [[2.0, 1e30], [np.inf, 1.0], [2.0, np.inf]]


def test_rows_that_no_client_can_have_sent_are_left_out():
    sound = [[3.0, 0.7], [4.0, 0.2]]
    plain, attacked = (PLAYERS.server_policy(SETUP) for _ in range(2))
    for round in range(1, 4):
        plain.update(round, {"drawn": torch.tensor(sound)})
        attacked.update(round, {"drawn": torch.tensor([*HOSTILE, *sound])})
        attacked.update(round, {"drawn": torch.tensor(HOSTILE)})
    assert torch.equal(plain.log_probabilities, attacked.log_probabilities)
    assert int(attacked.updates) == 3


def test_a_client_that_always_claims_the_rarest_configuration_breaks_nothing():
    server = PLAYERS.server_policy(SETUP)
    for round in range(1, 500):
        rarest = 1.0 + float(server.log_probabilities.argmin())
        server.update(round, {"drawn": torch.tensor([[rarest, 10.0], [3.0, 0.1]])})
        assert bool(server.log_probabilities.isfinite().all())
        assert server.probabilities.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("loss", [np.nan, np.inf, 1e20])
def test_a_client_that_diverges_tells_the_largest_loss(loss):
    clients = PLAYERS.client_policy(SETUP)
    clients.act(1, np.arange(2), UNSEEN)
    clients.reward(1, np.arange(2), outcome(np.array([loss, 0.5])))
    assert clients.experience(np.arange(2))["drawn"][:, 1].tolist() == [10.0, 0.5]
