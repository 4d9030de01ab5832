"""Games with a known answer, which an agent can only come to by learning. Streams are named: results do not vary."""

import numpy as np
import pytest
import torch

from pagefl.agents.ddpg import DdpgSettings
from pagefl.core import rng
from pagefl.game.learner import Learner, Learning

ROUNDS = 1500
EVERYBODY = np.arange(4)  # so many independent games, played side by side by stacked agents
# One stage is the whole game: nothing that comes later counts. The ring forgets how the others played when they knew nothing.
LEARNING = Learning(DdpgSettings(actor_lr=1e-3, critic_lr=5e-3, tau=0.05, gamma=0.0), 100, ROUNDS, replay=500)

pytestmark = pytest.mark.slow


def learner(name: str, seed: int, **changes: object) -> Learner:
    return Learner(name, len(EVERYBODY), states=1, actions=1, rounds=ROUNDS, seed=seed, learning=LEARNING)


def strategy(side: Learner, states: np.ndarray) -> np.ndarray:
    """What these agents would do now, without noise."""
    return side.ddpg.act(torch.from_numpy(EVERYBODY), torch.from_numpy(states).float()).numpy()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_agent_finds_its_best_response(seed):
    """Reward 1 - (a - a*(s))²: another a* for each agent, and another for each state."""
    middle = np.array([-0.6, -0.2, 0.3, 0.7])[:, None]

    def best(state: np.ndarray) -> np.ndarray:
        return middle + 0.4 * (state - 0.5)

    side = learner("client", seed)
    for round in range(1, ROUNDS + 1):
        state = rng.uniforms(rng.keys(seed, "states", round, EVERYBODY), 1)
        action, _ = side.act(round, EVERYBODY, state)
        side.learn(EVERYBODY, (1 - (action - best(state)) ** 2)[:, 0])
    for state in (0.1, 0.5, 0.9):
        states = np.full((len(EVERYBODY), 1), state)
        np.testing.assert_allclose(strategy(side, states), best(states), atol=0.1)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_leader_and_follower_find_the_stackelberg_equilibrium(seed):
    """The leader earns b - a², the follower, who has seen a, -(b - a/2)².

    The follower's best response is b = a/2, so the leader earns a/2 - a², most at a = 1/4 … if it foresees the response;
    a leader that took b as given would play a = 0.
    """
    leader, follower = learner("client", seed), learner("server", seed)
    nothing = np.ones((len(EVERYBODY), 1))
    for round in range(1, ROUNDS + 1):
        a, _ = leader.act(round, EVERYBODY, nothing)
        b, _ = follower.act(round, EVERYBODY, a)
        leader.learn(EVERYBODY, (2 * b - a**2)[:, 0])
        follower.learn(EVERYBODY, (-((b - a / 2) ** 2))[:, 0])
    a = strategy(leader, nothing)
    b = strategy(follower, a)
    print(seed, a.ravel(), b.ravel())
    np.testing.assert_allclose(a, 0.5, atol=0.1)
    np.testing.assert_allclose(b, 0.25, atol=0.1)
