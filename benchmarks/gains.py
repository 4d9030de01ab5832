"""What a client gains by larger steps, where all train the same model: the figure of docs/results/sharing.md.

    python benchmarks/gains.py FIGURE.png

Everybody plays at random for 120 rounds of Synthetic at the paper's size, seed 0. A client's gain is by how
much its training lowered the log of its own loss, less the mean of its round.
"""

import sys

import numpy as np
from matplotlib.figure import Figure

from pagefl.core.arrays import Floats, Integers
from pagefl.experiments.builders import synthetic
from pagefl.experiments.spec import resolve
from pagefl.game.game import Game
from pagefl.game.players.random import RandomClients
from pagefl.game.players.shared import FLOOR
from pagefl.game.protocol import Moves, Observation, Outcome, Players, Setup
from pagefl.game.ranges import Ranges
from pagefl.game.rewards import DemandRatio
from pagefl.runtime.simulation import simulate

ROUNDS = {
    "rounds 1 to 10": range(0, 10),
    "11 to 30": range(10, 30),
    "31 to 60": range(30, 60),
    "61 to 120": range(60, 120),
}
EDGES = np.array([-2.5, -2, -1.5, -1, -0.5, 0, 0.31])  # of the logarithm of lr times epochs


class Watched(RandomClients):
    """At random, and remembering what came of it."""

    uses_upload_loss = True

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, Ranges(1e-3, 0.1, 20))
        self.effort: list[Floats] = []
        self.gain: list[Floats] = []

    def act(self, round: int, clients: Integers, seen: Observation) -> Moves:
        self.before = np.log(seen.loss + FLOOR)
        moves = super().act(round, clients, seen)
        self.effort.append(np.log10(moves.lr * moves.epochs))
        return moves

    def reward(self, round: int, clients: Integers, outcome: Outcome) -> None:
        gain = self.before - np.log(outcome.upload_loss + FLOOR)
        self.gain.append(gain - gain.mean())


class WatchedPlayers(Players):
    def client_policy(self, setup: Setup) -> Watched:
        return Watched(setup)


def play(rule: str) -> Watched:
    task = synthetic(0)
    players = {"name": "page-shared"}  # so that SCAFFOLD is guarded as it is there
    spec = resolve({"task": "synthetic", "algorithm": rule, "players": players, "rounds": 120, "seed": 0})
    follower, leaders = simulate(task, spec.make_algorithm(), spec).game(WatchedPlayers())
    game = Game(follower, leaders)
    for round in range(1, 121):
        game.play(round, DemandRatio())
    assert isinstance(leaders.policy, Watched)
    return leaders.policy


def main(path: str) -> None:
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    for axis, rule in zip(figure.subplots(1, 3, sharey=True), ("FedAvg", "FedDyn", "SCAFFOLD"), strict=True):
        seen = play(rule.lower())
        for label, rounds in ROUNDS.items():
            effort, gain = (
                np.concatenate(what[rounds.start : rounds.stop]) for what in (seen.effort, seen.gain)
            )
            where = np.digitize(effort, EDGES)
            means = [gain[where == i].mean() for i in range(1, len(EDGES))]
            axis.plot(10 ** (EDGES[:-1] + np.diff(EDGES) / 2), means, marker="o", ms=3, label=label)
            print(rule, label, np.round(means, 3))
        axis.axhline(0, color="0.5", lw=0.8)
        axis.set(title=rule, xscale="log", xlabel="lr × epochs")
        axis.grid(alpha=0.3)
    figure.axes[0].set_ylabel("gain in log loss,\nagainst the mean of the round")
    figure.axes[-1].legend()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(sys.argv[1])
