"""Games with a known answer, which agents can only come to by learning.

Stacked agents play independent games, each with random streams of its own: as many seeds as agents.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pagefl.agents import networks
from pagefl.agents.ddpg import DdpgSettings
from pagefl.core import rng
from pagefl.game.learner import Learner, Learning

SEED, ROUNDS = 1, 3200
# A game of one stage: nothing that comes later counts. The action meets a narrow layer, or the critic hardly bends with it.
DDPG = DdpgSettings(actor_lr=3e-4, critic_lr=1e-2, tau=2e-3, gamma=0.0, batch_size=128, hidden=(8, 64))
LEARNING = Learning(DDPG, warm_up=500, explore_rounds=ROUNDS)

pytestmark = pytest.mark.slow


def learner(name: str, agents: int, learning: Learning) -> Learner:
    return Learner(name, agents, states=1, actions=1, rounds=ROUNDS, seed=SEED, learning=learning)


def strategy(side: Learner, states: np.ndarray) -> np.ndarray:
    """Of the target actor: the mean of the last few hundred actors, since the last one alone wavers with its critic."""
    return networks.act(side.ddpg.nets["target_actor"], torch.from_numpy(states)[:, None].float())[:, 0].double().numpy()


def assert_close(errors: np.ndarray) -> None:
    """Within 5 % of the range [-1, 1] by root mean square; about one agent in fifteen is a little further off, none twice."""
    assert np.sqrt(np.square(errors).mean()) < 0.1, errors.round(2)
    assert np.abs(errors).max() < 0.2, errors.round(2)


def test_an_agent_finds_its_best_response():
    """Reward 1 - (a - a*(s))²: another a* for each state, and four kinds of agents, three of each."""
    middle = np.tile([-0.6, -0.2, 0.3, 0.6], 3)[:, None]
    everybody = np.arange(len(middle))

    def best(state: np.ndarray) -> np.ndarray:
        return middle + 0.4 * (state - 0.5)

    side = learner("client", len(middle), LEARNING)
    for round in range(1, ROUNDS + 1):
        state = rng.uniforms(rng.keys(SEED, "states", round, everybody), 1)
        action, _ = side.act(round, everybody, state)
        side.learn(everybody, (1 - (action - best(state)) ** 2)[:, 0])
    errors = [strategy(side, states) - best(states) for states in (np.full(middle.shape, s) for s in (0.1, 0.5, 0.9))]
    assert np.abs(errors).mean() < 0.06, np.round(errors, 2)  # of a range of two
    assert np.abs(errors).max() < 0.2, np.round(errors, 2)


def test_leaders_and_followers_find_the_stackelberg_equilibrium():
    """The leader earns 2.4 b - 2 a²; the follower, who has seen a, earns -(b - a/2)².

    The follower's best response is b = a/2, so a leader that foresees it earns 1.2 a - 2 a², most at a = 0.3, where
    b = 0.15. A leader that took b as given would play a = 0.
    """
    games = np.arange(6)
    # As in PAGE the follower does not explore after its warm-up. Leaders play at random until it has learned to answer, and
    # forget how it played before.
    follower = learner("server", len(games), replace(LEARNING, explore_rounds=0))
    leader = learner("client", len(games), replace(LEARNING, warm_up=2000, replay=2200))
    nothing = np.ones((len(games), 1))
    for round in range(1, ROUNDS + 1):
        a, _ = leader.act(round, games, nothing)
        b, _ = follower.act(round, games, a)
        leader.learn(games, (2.4 * b - 2 * a**2)[:, 0])
        follower.learn(games, (-((b - a / 2) ** 2))[:, 0])
    a = strategy(leader, nothing)
    b = strategy(follower, a)
    assert_close(a - 0.3)
    assert_close(b - 0.15)
