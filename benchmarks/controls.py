"""Small controls that docs/results/learning.md speaks of.

    python benchmarks/controls.py

Corners: agents with PAGE's settings in a game of one stage whose best action lies inside, reward 1 - (a -
a*)².
Halves: PAGE on FedAvg's rule with only the server, or only the clients, playing.
SCAFFOLD: its rule under random and under PAGE's players, unguarded and with each of its two guards.
"""

import numpy as np

import pagefl
from pagefl.agents.ddpg import DdpgSettings
from pagefl.core import rng
from pagefl.game.learner import Learner, Learning

SEED, AGENTS = 0, 20


def corners(rounds: int) -> str:
    everybody = np.arange(AGENTS)
    best = np.linspace(-0.7, 0.7, AGENTS)[:, None]
    settings = DdpgSettings(actor_lr=5e-4, critic_lr=5e-3, tau=5e-3, gamma=0.99)
    side = Learner("client", AGENTS, 1, 1, rounds, SEED, Learning(settings))
    for round in range(1, rounds + 1):
        state = rng.uniforms(rng.keys(SEED, "states", round, everybody), 1)
        action, _ = side.act(round, everybody, state)
        side.learn(everybody, (1 - (action - best) ** 2)[:, 0])
    side.frozen = True
    action, _ = side.act(rounds, everybody, np.full((AGENTS, 1), 0.5))
    cornered, near = int((np.abs(action) > 0.95).sum()), int((np.abs(action - best) < 0.1).sum())
    return (
        f"round {rounds}: {cornered} of {AGENTS} agents beyond |a| = 0.95, {near} within 0.1 of the "
        "best action"
    )


def halves(freeze: list[str]) -> str:
    last = pagefl.run(task="synthetic", algorithm="page", rounds=300, seed=SEED, freeze=freeze).rounds[-1]
    weights = f"weights {last['smallest_weight']:.4f} to {last['largest_weight']:.4f}"
    return (
        f"{freeze} frozen: global {last['global_accuracy']:.4f}, local {last['local_accuracy']:.4f}, "
        f"{weights}"
    )


def scaffold(players: str, **guards: float | bool) -> str:
    algorithm = {"name": "scaffold", **guards}
    last = pagefl.run(
        task="synthetic", clients=40, rounds=300, seed=SEED, algorithm=algorithm, players=players
    ).rounds[-1]
    return f"{players} {guards}: global {last['global_accuracy']:.3f}, local {last['local_accuracy']:.3f}"


if __name__ == "__main__":
    for rounds in (300, 1000):
        print(corners(rounds), flush=True)
    for freeze in (["p"], ["eta", "alpha"]):
        print(halves(freeze), flush=True)
    for players in ("random", "page"):
        for fresh in (1.0, 0.1):
            for bounded in (False, True):
                print(scaffold(players, fresh=fresh, bounded=bounded), flush=True)
