"""Games with a known answer, which agents can only come to by learning.

Stacked agents play independent games, each with random streams of its own: as many seeds as agents.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from pagefl.agents import networks
from pagefl.agents.ddpg import DdpgSettings
from pagefl.core import rng
from pagefl.game.certificate import Deviation, certify
from pagefl.game.learner import Learner, Learning

SEED = 2
# A game of one stage: nothing that comes later counts. The action meets a narrow layer, or the critic hardly
# bends with it.
DDPG = DdpgSettings(actor_lr=3e-4, critic_lr=1e-2, tau=2e-3, gamma=0.0, batch_size=128, hidden=(8, 64))
NEAR = 0.1  # 5 % of the range of actions, [-1, 1]

pytestmark = pytest.mark.slow


def learner(name: str, agents: int, rounds: int, ddpg: DdpgSettings = DDPG, **learning) -> Learner:
    options = {"warm_up": 500, "explore_rounds": rounds, "rewards": "standard", **learning}
    return Learner(
        name, agents, states=1, actions=1, rounds=rounds, seed=SEED, learning=Learning(ddpg, **options)
    )


def strategy(side: Learner, states: np.ndarray) -> np.ndarray:
    """Of the target actor: the mean of the last few hundred actors, since the last one alone wavers with its
    critic.
    """
    return (
        networks.act(side.ddpg.nets["target_actor"], torch.from_numpy(states)[:, None].float())[:, 0]
        .double()
        .numpy()
    )


def moved(side: Learner, round: int, who: np.ndarray, state: np.ndarray) -> np.ndarray:
    """Learn from what the last move led to, then move."""
    side.observe(round, who, state)
    return side.act(round, who, state)


def test_an_agent_finds_its_best_response():
    """Reward 1 - (a - a*(s))²: another a* for each state, and four kinds of agents, three of each."""
    middle = np.tile([-0.6, -0.2, 0.3, 0.6], 3)[:, None]
    everybody = np.arange(len(middle))

    def best(state: np.ndarray) -> np.ndarray:
        return middle + 0.4 * (state - 0.5)

    side = learner("client", len(middle), rounds=3200)
    for round in range(1, 3200 + 1):
        state = rng.uniforms(rng.keys(SEED, "states", round, everybody), 1)
        action = moved(side, round, everybody, state)
        side.reward(everybody, (1 - (action - best(state)) ** 2)[:, 0])
    errors = [
        strategy(side, states) - best(states)
        for states in (np.full(middle.shape, s) for s in (0.1, 0.5, 0.9))
    ]
    assert np.abs(errors).max() < NEAR, np.round(errors, 2)


def leader_earns(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return 1 + 1.6 * b - 2 * (a - 0.1) ** 2


def follower_earns(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return 1 - (b - a / 2) ** 2


def test_leaders_and_followers_find_the_stackelberg_equilibrium():
    """The follower's best response is b = a/2, so a leader that foresees it earns 1 + 0.8 a - 2 (a - 0.1)²,
    most at a = 0.3, where b = 0.15. A leader that took b as given would play a = 0.1. The certificate says
    the same of what was learned."""
    rounds, games = 5000, np.arange(6)
    # As in PAGE the follower does not explore after its warm-up. Leaders play at random until it has learned
    # to answer, and forget how it played before. They learn more slowly, since their world, the follower,
    # wavers.
    follower = learner("server", len(games), rounds, explore_rounds=0)
    slowly = replace(DDPG, critic_lr=5e-3, tau=1e-3, batch_size=256)
    leader = learner("client", len(games), rounds, slowly, warm_up=2800, replay=2800)
    nothing = np.ones((len(games), 1))
    for round in range(1, rounds + 1):
        a = moved(leader, round, games, nothing)
        b = moved(follower, round, games, a)
        leader.reward(games, leader_earns(a, b)[:, 0])
        follower.reward(games, follower_earns(a, b)[:, 0])
    a = strategy(leader, nothing)
    assert np.abs(a - 0.3).max() < NEAR, a.round(2)
    assert np.abs(strategy(follower, a) - 0.15).max() < NEAR, strategy(follower, a).round(2)

    for game in games:

        def answer(move: float, game: int = game) -> float:
            return float(strategy(follower, np.full((len(games), 1), move))[game, 0])

        assert max(epsilons(float(a[game, 0]), answer).values()) < 0.03
    far = epsilons(-0.9, lambda move: 0.9)
    assert min(far.values()) > 0.3


def epsilons(lead: float, answer: Callable[[float], float]) -> dict[str, float]:
    """What each side could gain by another move; the follower's strategy answers whatever the leader does."""

    def replay(deviation: Deviation | None) -> dict[str, float]:
        a = deviation.move[0] if deviation and deviation.player == "leader" else lead
        b = deviation.move[0] if deviation and deviation.player == "follower" else answer(a)
        return {"leader": float(leader_earns(a, b)), "follower": float(follower_earns(a, b))}

    tried = [
        Deviation(player, (float(move),))
        for player in ("leader", "follower")
        for move in np.linspace(-1, 1, 41)
    ]
    return {found.player: found.epsilon for found in certify(0, replay, tried)}
