"""How far a profile of strategies is from a feedback Stackelberg equilibrium, measured.

Definition 4: nobody gains pay-off by changing its own strategy in any one stage while all others keep theirs.
So change one player's one move, replay, and compare. The largest gain found, as a share of the player's
pay-off, is its epsilon: a lower bound, since only the deviations that were tried are known.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from pagefl.core import personal, rng
from pagefl.core.algorithm import State
from pagefl.core.arrays import Floats, Integers

from .follower import Follower, Round
from .game import Game
from .leaders import Leaders
from .protocol import ClientPolicy, Moves, Observation, ServerPolicy
from .ranges import Ranges
from .rewards import DemandRatio, reward
from .uploads import Uploads

Move = tuple[float, ...]  # a client's (lr, epochs), or the server's weights
OWN_STEP = ", personal step"  # after a client's name: it deviates in its personal step


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
    barred: int = 0  # deviations that do not count, since they would exceed the player's budget
    multiplier: float | None = None  # the price of its budget, if it has one; above 0: the budget binds
    used: float | None = None  # of its budget, by its own move


def certify(
    stage: int,
    replay: Callable[[Deviation | None], Mapping[str, float]],
    deviations: Sequence[Deviation],
    allowed: Callable[[Deviation], bool] = lambda deviation: True,
) -> list[Finding]:
    """`replay`: the pay-offs of all players from this stage on, with one move changed or none. `allowed`:
    whether a move is within its player's budget; asked after the replay with none."""
    base = replay(None)
    best: dict[str, Finding] = {}
    for deviation in deviations:
        player = deviation.player
        found = best.get(player, Finding(stage, player, base[player], 0.0, None, 0))
        if not allowed(deviation):
            best[player] = found._replace(barred=found.barred + 1)
            continue
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


def certify_game(
    follower: Follower,
    leaders: Leaders,
    stage: int,
    demand: DemandRatio,
    ranges: Ranges,
    gamma: float,
    trial: Trial,
) -> list[Finding]:
    """From the present state, which is the end of round `stage`. It is left as it was found."""
    start = {name: value.clone() for name, value in {**follower.half.state(), **leaders.half.state()}.items()}
    clients, server = leaders.policy, follower.policy
    clients.freeze()
    server.freeze()
    terms = follower.terms
    follower.terms = leaders.terms = replace(terms, rewards=True)  # whoever learns by them
    game = Game(follower, leaders)
    books = Books(server)

    def back() -> None:
        leaders.policy, follower.policy = clients, server
        follower.half.load(start)
        leaders.half.load(start)

    def replay(deviation: Deviation | None) -> dict[str, float]:
        back()
        if deviation is not None and deviation.player == "server":
            follower.policy = OtherWeights(server, stage + 1, np.array(deviation.move))
        elif deviation is not None:
            leaders.policy = OtherMove(
                clients, stage + 1, int(deviation.player.removeprefix("client ")), deviation.move
            )
        payoffs = {"server": 0.0, **{f"client {i}": 0.0 for i in range(leaders.half.size)}}
        for ahead in range(trial.horizon):
            played = game.play(stage + 1 + ahead, demand)
            if deviation is None and not ahead:
                books.open(played)
            payoffs["server"] += gamma**ahead * played.reward
            for client in played.answer.clients:
                payoffs[f"client {client}"] += gamma**ahead * float(played.answer.told["reward"][client])
        return payoffs

    ids = follower.half.participants(stage + 1, follower.terms.participation)
    most = leaders.affords(follower.orders(stage + 1, demand))
    books.paid = {} if most is None else dict(zip(ids.tolist(), most.tolist(), strict=True))
    findings = certify(stage, replay, deviations(ids, ranges, trial, stage), books.allowed)
    findings = [books.noted(finding) for finding in findings]
    back()
    if leaders.half.steps:
        findings += certify_steps(game, stage, deviating(ids, trial))
    back()
    follower.terms = leaders.terms = terms
    return findings


class Books:
    """What players with a budget can pay in one stage, and what they did pay."""

    def __init__(self, server: ServerPolicy) -> None:
        self.server = server
        self.paid: dict[int, float] = {}  # the most epochs of each client
        self.accounts: dict[str, tuple[float, float]] = {}
        self.seconds = np.empty(0)  # of the round's uploads

    def open(self, played: Round) -> None:
        """Of the stage as it is played without a deviation."""
        told = played.answer.told
        self.seconds = told.of("seconds", played.answer.clients)
        for place in (~np.isnan(told["used"])).nonzero()[0]:
            numbers = float(told["multiplier"][place]), float(told["used"][place])
            self.accounts[f"client {told.clients[place]}"] = numbers
        if (account := self.server.account()) is not None:
            self.accounts["server"] = float(account.multiplier[0]), float(account.used[0])

    def allowed(self, deviation: Deviation) -> bool:
        if deviation.player == "server":
            weights = np.array(deviation.move)
            return self.server.affords(weights / weights.sum(), self.seconds)
        client = int(deviation.player.removeprefix("client "))
        return deviation.move[1] <= self.paid.get(client, np.inf)

    def noted(self, finding: Finding) -> Finding:
        """An exhausted budget has no share that is used."""
        multiplier, used = self.accounts.get(finding.player, (None, np.inf))
        return finding._replace(multiplier=multiplier, used=used if np.isfinite(used) else None)


def certify_steps(game: Game, stage: int, clients: Integers) -> list[Finding]:
    """What these clients would gain by a personal step of their own, among all that were tried.

    All clients take the same one. The pay-off is one over the loss on the client's hold-out.
    """
    losses = game.clients.try_steps(game.follower.farewell(stage)).losses
    policy = game.follower.policy
    tried = personal.choices(policy.personal_lr, policy.setup.epochs)
    chosen = tried.index(personal.choose(losses, policy.personal_lr, policy.setup.epochs))
    findings = []
    for client in clients.tolist():
        paid = np.nan_to_num(reward(losses[client], game.follower.terms.penalty))
        best = int(paid.argmax())
        base = float(paid[chosen])
        gain = (float(paid[best]) - base) / max(base, 1e-12) if base else 0.0
        move = (tried[best].lr, float(tried[best].epochs)) if gain > 0 else None
        findings.append(Finding(stage, f"client {client}{OWN_STEP}", base, gain, move, len(tried)))
    return findings


def deviating(ids: Integers, trial: Trial) -> Integers:
    """The clients that are tried: the same in every stage, as far as they take part."""
    same = rng.stream(trial.seed, "who deviates")
    return np.sort(same.choice(ids, min(trial.clients, len(ids)), replace=False))


def deviations(ids: Integers, ranges: Ranges, trial: Trial, stage: int) -> list[Deviation]:
    chance = rng.stream(trial.seed, "deviations", stage)
    grid = [(a, b) for a in np.linspace(-1, 1, trial.grid) for b in np.linspace(-1, 1, trial.grid)]
    result = []
    for client in deviating(ids, trial):
        actions = np.array([*grid, *chance.uniform(-1, 1, (trial.random, 2))])
        for lr, epochs in zip(ranges.lr(actions[:, 0]), ranges.epochs(actions[:, 1]), strict=True):
            result.append(Deviation(f"client {client}", (float(lr), float(epochs))))
    equal = np.full(len(ids), 1 / len(ids))
    weights = [
        equal,
        *(
            ranges.weights(action)
            for action in chance.uniform(-1, 1, (trial.random + trial.grid**2, len(ids)))
        ),
    ]
    return [*result, *(Deviation("server", tuple(choice)) for choice in weights)]


class OtherMove(ClientPolicy):
    """A frozen policy of which one client does something else in one round."""

    def __init__(self, policy: ClientPolicy, round: int, client: int, move: Move) -> None:
        super().__init__(policy.setup)
        self.policy, self.round, self.client, self.move = policy, round, client, move

    @property
    def received(self) -> State:
        return self.policy.received

    def act(self, round: int, clients: Integers, seen: Observation) -> Moves:
        lr, epochs = self.policy.act(round, clients, seen)
        if round == self.round:
            lr[clients == self.client], epochs[clients == self.client] = self.move[0], int(self.move[1])
        return Moves(lr, epochs)


class OtherWeights(ServerPolicy):
    """A frozen policy that does something else in one round."""

    def __init__(self, policy: ServerPolicy, round: int, weights: Floats) -> None:
        super().__init__(policy.setup)
        self.policy, self.round, self.weights = policy, round, weights

    @property
    def sent(self) -> State:
        return self.policy.sent

    def act(self, round: int, clients: Integers, uploads: Uploads) -> Floats:
        return (
            self.weights / self.weights.sum()
            if round == self.round
            else self.policy.act(round, clients, uploads)
        )


def bellman_residual(rewards: Floats, payoffs: Floats, gamma: float) -> float:
    """Theorem 1 on the recorded path: values computed backwards, V(t) = u(t) + gamma V(t + 1), against the
    pay-offs that were summed up forwards, sum gamma^t u(t). The largest difference, as a share of the
    value."""
    value = np.zeros(len(rewards) + 1)
    for t in range(len(rewards) - 1, -1, -1):
        value[t] = rewards[t] + gamma * value[t + 1]
    before = np.concatenate([[0.0], payoffs[:-1]])
    forwards = (payoffs[-1] - before) / gamma ** np.arange(1, len(rewards) + 1)
    # Late rounds weigh nothing here but are divided by a vanishing gamma^t, so compare at the scale of the
    # whole.
    scale = np.abs(payoffs[-1]) / gamma ** np.arange(1, len(rewards) + 1)
    return float(np.max(np.abs(value[:-1] - forwards) / scale))
