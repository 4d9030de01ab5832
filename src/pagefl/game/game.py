"""FederatedGame: in every stage the clients lead, the server sees their result and follows."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

from torch import Tensor

from pagefl.agents.ddpg import Losses
from pagefl.core.evaluate import Scores
from pagefl.core.federation import Federation, Trained, Uploads, pooled

from . import rules
from .players import Fixed, Follower, Leaders, Seen, Setup, Worth
from .rules import Bias, Floats, Integers

Factor = Literal["p", "alpha", "eta"]


@dataclass(frozen=True)
class Terms:
    """What is agreed before the game: how moves are paid, and which of them are not played but fixed."""

    penalty: float = 0.0
    reward: Literal["aggregate", "weighted-local"] = "aggregate"
    protocol: rules.Protocol = "clean"
    freeze: frozenset[Factor] = frozenset()
    participation: float = 1.0


class Led(NamedTuple):
    """What the leaders did in a stage."""

    ids: Integers
    lr: Floats
    epochs: Integers | Floats  # nodes need not tell
    seen: Seen | None
    trained: Trained
    rewards: Floats  # of trained.ids, raw
    losses: Losses | None
    lessons: Mapping[str, Tensor] = MappingProxyType({})  # of trained.ids, for who share a policy
    absent: Mapping[str, int] = MappingProxyType({})  # in a deployment: how many did not answer, or too late


class Followed(NamedTuple):
    """What the follower did about it."""

    weights: Floats
    test: tuple[float, float]  # loss and accuracy of the new W on the half that only judges
    game: tuple[float, float]  # and on the half that may be looked at
    reward: float
    losses: Losses | None
    taught: Losses | None  # of the agent that clients share, where the server trains it


class FederatedGame:
    def __init__(self, federation: Federation, leaders: Leaders, follower: Follower, setup: Setup, terms: Terms) -> None:
        self.federation, self.leaders, self.follower, self.terms = federation, leaders, follower, terms
        self.frozen = Fixed(setup)
        released = terms.protocol == "released"  # states and rewards on test splits, as the published programs have it
        self.client_role, self.server_role = ("test", "server_test") if released else ("reward", "game")

    def begin(self) -> tuple[Scores, Scores]:
        """The first model on every client's test data, and on what the game may see: who has not trained is judged by it."""
        first = self.federation.judge(0, "test", "reward")
        return first["test"], first["reward"]

    def lead(self, round: int, bias: Bias, ids: Integers | None = None) -> Led:
        """Clients observe W on their own data, learn, choose lr and epochs, and train."""
        if ids is None:
            ids = self.federation.participants(round, self.terms.participation)
        seen = None
        if self.leaders.sees:
            scores = self.federation.judge(round, self.client_role)[self.client_role]
            seen = Seen(scores.accuracy, scores.loss, bias).of(ids)
        lr, epochs, losses = self.leaders.lead(round, ids, seen)
        fixed_lr, fixed_epochs, _ = self.frozen.lead(round, ids, None)
        lr = fixed_lr if "eta" in self.terms.freeze else lr
        epochs = fixed_epochs if "alpha" in self.terms.freeze else epochs
        shown = self.server_role if self.follower.sees else None
        trained = self.federation.train(round, ids, lr, epochs, candidates_on=shown, uploads_too=self.leaders.sees)
        scores = trained.test if self.client_role == "test" else trained.train
        rewards = rules.reward(scores.loss, self.terms.penalty)
        if len(trained.ids):
            worth = Worth(rewards * bias.clients, scores.accuracy, scores.loss, trained.given.loss)
            self.leaders.learn(trained.ids, worth)
        return Led(ids, lr, epochs, seen, trained, rewards, losses, self.leaders.lessons(trained.ids))

    def follow(self, round: int, led: Led, bias: Bias) -> Followed:
        """The server learns from what clients share, looks at uploads on its game half, chooses weights, and aggregates."""
        trained = led.trained
        taught = self.leaders.share(round, led.lessons) if led.lessons else None
        uploads = Uploads(self.federation, trained, self.server_role) if self.follower.sees else None
        weights, losses = self.follower.follow(round, trained.ids, uploads)
        if "p" in self.terms.freeze:
            weights, _ = self.frozen.follow(round, trained.ids, None)
        self.federation.aggregate(trained.ids, weights)
        judged = self.federation.judge(round, "server_test", "game")
        test, game = (pooled(judged[role], self.federation.data[role]) for role in ("server_test", "game"))
        loss = (test if self.server_role == "server_test" else game)[0]
        if self.terms.reward == "weighted-local":
            loss = float(weights @ (trained.test if self.client_role == "test" else trained.train).loss)
        reward = float(rules.reward(loss, self.terms.penalty))
        self.follower.learn(reward * bias.server)
        return Followed(weights, test, game, reward, losses, taught)

    def load(self, tensors: dict[str, Tensor]) -> None:
        for side, player in self._sides.items():
            player.load(
                {name.removeprefix(f"{side}."): value for name, value in tensors.items() if name.startswith(f"{side}.")}
            )

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The agents of both sides."""
        return {f"{side}.{name}": value for side, player in self._sides.items() for name, value in player.tensors.items()}

    @property
    def _sides(self) -> dict[str, Leaders | Follower]:
        return {"clients_agent": self.leaders, "server_agent": self.follower}
