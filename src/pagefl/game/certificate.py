"""How far a profile of strategies is from a feedback Stackelberg equilibrium, measured.

Definition 4: nobody gains pay-off by changing its own strategy in any one stage while all others keep theirs. So change
one player's one move, replay, and compare. The largest gain found, as a share of the player's pay-off, is its epsilon:
a lower bound, since only the deviations that were tried are known.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pagefl.core import rng
from pagefl.core.federation import Uploads

from .game import FederatedGame
from .players import Apart, Follower, Leaders, Seen
from .rules import Bias, Floats, Integers, Ranges

Move = tuple[float, ...]  # a client's (lr, epochs), or the server's weights


class Deviation(NamedTuple):
    player: str
    move: Move


class Finding(NamedTuple):
    """One player's best deviation in one stage."""

    stage: int
    player: str
    payoff: float
    epsilon: float  # largest gain as a share of the pay-off; zero if nothing gains
    move: Move | None  # the deviation that gains it
    tried: int


def certify(
    stage: int, replay: Callable[[Deviation | None], Mapping[str, float]], deviations: Sequence[Deviation]
) -> list[Finding]:
    """`replay`: the pay-offs of all players from this stage on, with one move changed or none."""
    base = replay(None)
    best: dict[str, Finding] = {}
    for deviation in deviations:
        player = deviation.player
        found = best.get(player, Finding(stage, player, base[player], 0.0, None, 0))
        gain = (replay(deviation)[player] - base[player]) / max(abs(base[player]), 1e-12)
        if gain > found.epsilon:
            found = found._replace(epsilon=gain, move=deviation.move)
        best[player] = found._replace(tried=found.tried + 1)
    return list(best.values())


@dataclass(frozen=True)
class Trial:
    """Which deviations are tried."""

    horizon: int = 20
    clients: int = 5
    grid: int = 3  # by as many values of lr and of epochs
    random: int = 4
    seed: int = 0


def certify_game(game: FederatedGame, stage: int, bias: Bias, ranges: Ranges, gamma: float, trial: Trial) -> list[Finding]:
    """From the game's present state, which is the end of round `stage`; it is left as it was found."""
    federation = game.federation
    start = {name: value.clone() for name, value in federation.state().items()}
    for side in (game.leaders, game.follower):
        side.freeze()
    ids = federation.participants(stage + 1, game.terms.participation)

    def replay(deviation: Deviation | None) -> dict[str, float]:
        federation.load(start)
        leaders, follower = game.leaders, game.follower
        if deviation is not None and deviation.player == "server":
            game.follower = OtherWeights(follower, stage + 1, np.array(deviation.move))
        elif deviation is not None:
            game.leaders = OtherMove(leaders, stage + 1, int(deviation.player.removeprefix("client ")), deviation.move)
        payoffs = {"server": 0.0, **{f"client {i}": 0.0 for i in range(federation.size)}}
        for ahead in range(trial.horizon):
            led = game.lead(stage + 1 + ahead, bias)
            followed = game.follow(stage + 1 + ahead, led, bias)
            payoffs["server"] += gamma**ahead * followed.reward
            for client, reward in zip(led.trained.ids, led.rewards, strict=True):
                payoffs[f"client {client}"] += gamma**ahead * float(reward)
        game.leaders, game.follower = leaders, follower
        return payoffs

    findings = certify(stage, replay, deviations(ids, ranges, trial, stage))
    federation.load(start)
    return findings


def deviations(ids: Integers, ranges: Ranges, trial: Trial, stage: int) -> list[Deviation]:
    chance = rng.stream(trial.seed, "deviations", stage)
    grid = [(a, b) for a in np.linspace(-1, 1, trial.grid) for b in np.linspace(-1, 1, trial.grid)]
    result = []
    same = rng.stream(trial.seed, "who deviates")  # in every stage, as far as they take part
    for client in np.sort(same.choice(ids, min(trial.clients, len(ids)), replace=False)):
        actions = np.array([*grid, *chance.uniform(-1, 1, (trial.random, 2))])
        for lr, epochs in zip(ranges.lr(actions[:, 0]), ranges.epochs(actions[:, 1]), strict=True):
            result.append(Deviation(f"client {client}", (float(lr), float(epochs))))
    equal = np.full(len(ids), 1 / len(ids))
    weights = [equal, *(ranges.weights(action) for action in chance.uniform(-1, 1, (trial.random + trial.grid**2, len(ids))))]
    return [*result, *(Deviation("server", tuple(choice)) for choice in weights)]


class OtherMove(Apart):
    """Leaders of whom one does something else in one round."""

    def __init__(self, leaders: Leaders, round: int, client: int, move: Move) -> None:
        self.leaders, self.round, self.client, self.move = leaders, round, client, move
        self.sees, self.learn, self.tensors = leaders.sees, leaders.learn, leaders.tensors
        self.load, self.freeze = leaders.load, leaders.freeze

    def lead(self, round: int, who: Integers, seen: Seen | None) -> tuple[Floats, Integers, None]:
        lr, epochs, _ = self.leaders.lead(round, who, seen)
        if round == self.round:
            lr[who == self.client], epochs[who == self.client] = self.move[0], int(self.move[1])
        return lr, epochs, None


class OtherWeights:
    """A follower that does something else in one round."""

    def __init__(self, follower: Follower, round: int, weights: Floats) -> None:
        self.follower, self.round, self.weights = follower, round, weights
        self.sees, self.learn, self.tensors = follower.sees, follower.learn, follower.tensors
        self.load, self.freeze = follower.load, follower.freeze

    def follow(self, round: int, who: Integers, uploads: Uploads | None) -> tuple[Floats, None]:
        weights, _ = self.follower.follow(round, who, uploads)
        return (self.weights / self.weights.sum() if round == self.round else weights), None


def bellman_residual(rewards: Floats, payoffs: Floats, gamma: float) -> float:
    """Theorem 1 on the recorded path: values computed backwards, V(t) = u(t) + gamma V(t + 1), against the pay-offs that
    were summed up forwards, sum gamma^t u(t). The largest difference, as a share of the value."""
    value = np.zeros(len(rewards) + 1)
    for t in range(len(rewards) - 1, -1, -1):
        value[t] = rewards[t] + gamma * value[t + 1]
    before = np.concatenate([[0.0], payoffs[:-1]])
    forwards = (payoffs[-1] - before) / gamma ** np.arange(1, len(rewards) + 1)
    # What lies far ahead weighs nothing here but is divided by a vanishing gamma^t: compare at the scale of the whole.
    scale = np.abs(payoffs[-1]) / gamma ** np.arange(1, len(rewards) + 1)
    return float(np.max(np.abs(value[:-1] - forwards) / scale))
