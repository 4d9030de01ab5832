"""A constrained game whose solution is known in closed form, which agents can only come to by their prices.

That of page-shared, and of servers, is solved in unit/test_budgets.py.
"""

import numpy as np
import pytest

from pagefl.agents.ddpg import DdpgSettings
from pagefl.core.evaluate import Scores
from pagefl.devices.costs import Costs, Prices
from pagefl.devices.fleet import Equal
from pagefl.game.budgets import Budgets
from pagefl.game.learner import Learning
from pagefl.game.multipliers import Multipliers
from pagefl.game.players.client_agents import BudgetedAgents
from pagefl.game.protocol import Observation, Outcome, Setup
from pagefl.game.ranges import Ranges

DDPG = DdpgSettings(actor_lr=3e-4, critic_lr=1e-2, tau=2e-3, gamma=0.0, batch_size=128, hidden=(8, 64))
ROUNDS, WARM_UP, LAST = 2400, 600, 400
NEAR, NEAR_PRICE, RARELY = 0.05, 0.1, 0.02

pytestmark = pytest.mark.slow


def costs(seconds: np.ndarray) -> Costs:
    return Costs(seconds, 0 * seconds, seconds)


# A client's reward 2 - (1 - epochs / BEST)² is largest at BEST epochs. With a budget of fewer it plays as
# many as that pays for, where one more is worth 2 (1 - epochs / BEST) / BEST.
BEST, MOST, BUDGET = 800, 1000, 60.0
PAYS = np.array([200.0, 400.0, 1500.0])  # epochs that a budget pays for, beside a transfer
ALIKE = 8  # clients of each kind, judged by their median: single agents miss by chance
PAID = PAYS.repeat(ALIKE)


def client_earns(epochs: np.ndarray) -> np.ndarray:
    return 2 - (1 - epochs / BEST) ** 2


def play_clients(rounds: int = ROUNDS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Epochs, multipliers and shares of the budget in the last rounds."""
    count = len(PAID)
    setup = Setup(count, rounds, 0, lr=0.1, epochs=5, devices=Equal())
    transfer = np.full(count, 0.1 * BUDGET)
    prices = Prices(costs((BUDGET - transfer) / PAID), costs(transfer))
    policy = BudgetedAgents(
        setup,
        Ranges(0.01, 1.0, MOST),
        Learning(DDPG, WARM_UP, explore_rounds=3 * rounds // 4),
        Budgets(setup, BUDGET, "seconds"),
        state=lambda scores: [scores.accuracy],
        earned=lambda outcome: outcome.reward,
    )
    everybody, nothing = np.arange(count), np.ones(count)
    seen = Observation(lambda: Scores(nothing, nothing), prices=prices)
    found = []
    for round in range(1, rounds + 1):
        policy.observe(round, everybody, seen)
        epochs = policy.act(round, everybody, seen).epochs
        spent = prices.epoch * epochs + prices.transfer
        policy.reward(round, everybody, Outcome(client_earns(epochs), *[nothing] * 6, spent))
        found.append((epochs, policy.account().multiplier, policy.account().used))
    return tuple(np.array(values[-LAST:]) for values in zip(*found, strict=True))


def test_clients_find_their_budgets_and_their_prices():
    epochs, multiplier, used = play_clients()
    each = 0.9 / PAYS
    price = np.where(PAYS < BEST, 2 * (1 - PAYS / BEST) / BEST / each, 0.0)
    assert typical(epochs) == pytest.approx(np.minimum(PAYS, BEST), rel=NEAR)
    assert typical(multiplier) == pytest.approx(price, rel=NEAR_PRICE, abs=1e-9)
    assert (used[:, PAID < BEST] > 1).mean() < RARELY


def typical(values: np.ndarray) -> np.ndarray:
    """The median client of each kind, by its mean over the rounds."""
    return np.median(values.mean(0).reshape(len(PAYS), ALIKE), 1)


def test_without_a_price_budgets_are_exceeded(monkeypatch):
    monkeypatch.setattr(Multipliers, "learn", lambda self, who, used: None)
    _, multiplier, used = play_clients(rounds=1000)
    assert (used[:, PAID < BEST] > 1).mean() > 0.9
    assert (multiplier == 0).all()
