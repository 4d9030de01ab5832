"""The players that learn.

PAGE: Chen, Wang, Hu, Yan, Zhou, Lin: PAGE: Equilibrate Personalization and Generalization in Federated Learning. WWW 2024.
Dap-FL: Chen, Wang, Chen, Yan, Lin: Dap-FL: Federated Learning Flourishes by Adaptive Tuning and Secure Aggregation. TPDS
2023.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from torch import Tensor

from pagefl.agents.ddpg import DdpgSettings, Losses
from pagefl.core.federation import Uploads

from .learner import Learner, Learning, Scale
from .players import Apart, Count, Fixed, Follower, Leaders, Positive, Seen, Setup, Wait, Worth
from .rules import Floats, Integers, Ranges


class LearningSide(Apart):
    """What both sides that learn have in common: all they remember is their learner's."""

    sees = True
    learner: Learner

    @property
    def tensors(self) -> dict[str, Tensor]:
        return self.learner.tensors

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.learner.load(tensors)

    def freeze(self) -> None:
        self.learner.frozen = True


class LearningLeaders(LearningSide):
    def __init__(self, setup: Setup, ranges: Ranges, learning: Learning, *, with_loss: bool) -> None:
        """`with_loss`: Dap-FL's state (accuracy, loss) and reward (accuracy - loss) in place of PAGE's."""
        self.ranges, self.with_loss = ranges, with_loss
        states = 2 if with_loss else 1
        self.learner = Learner("client", setup.clients, states, 2, setup.rounds, setup.seed, learning, setup.first)

    def lead(self, round: int, who: Integers, seen: Seen | None) -> tuple[Floats, Integers, Losses | None]:
        assert seen is not None
        state = np.stack([seen.accuracy, seen.loss] if self.with_loss else [seen.accuracy], axis=1)
        action, losses = self.learner.act(round, who, state)
        return self.ranges.lr(action[:, 0]), self.ranges.epochs(action[:, 1]), losses

    def learn(self, who: Integers, worth: Worth) -> None:
        self.learner.learn(who, worth.accuracy - worth.loss if self.with_loss else worth.reward)


class LearningFollower(LearningSide):
    def __init__(self, setup: Setup, ranges: Ranges, learning: Learning) -> None:
        self.ranges = ranges
        self.learner = Learner("server", 1, setup.clients, setup.clients, setup.rounds, setup.seed, learning)

    def follow(self, round: int, who: Integers, uploads: Uploads | None) -> tuple[Floats, Losses | None]:
        assert uploads is not None
        state = np.zeros((1, self.learner.ddpg.states))  # absent clients: zero
        state[0, who] = uploads.accuracy
        action, losses = self.learner.act(round, np.array([0]), state)
        return self.ranges.weights(action[0, who]), losses

    def learn(self, reward: float) -> None:
        self.learner.learn(np.array([0]), np.array([reward]))


@dataclass(frozen=True)
class PagePlayers:
    """PAGE: every client's DDPG agent picks its lr and epochs, the server's picks the weights."""

    lr_min: Positive = 1e-3
    lr_max: Positive = 0.1
    epochs_max: Count = 20
    temperature: Positive = 1.0
    critic_lr: Positive = 5e-3
    actor_lr: Positive = 5e-4
    tau: Positive = 5e-3
    gamma: Positive = 0.99
    warm_up: Wait = 36
    explore_rounds: Wait = 500
    rewards: Scale = "raw"

    def sides(self, setup: Setup) -> tuple[Leaders, Follower]:
        ranges = Ranges(self.lr_min, self.lr_max, self.epochs_max, self.temperature, "released" if setup.released else "clean")
        ddpg = DdpgSettings(self.actor_lr, self.critic_lr, self.tau, self.gamma)
        clients = Learning(ddpg, self.warm_up, self.explore_rounds, self.rewards)
        server = replace(clients, explore_rounds=0)  # it does not explore after the warm-up
        return LearningLeaders(setup, ranges, clients, with_loss=False), LearningFollower(setup, ranges, server)


@dataclass(frozen=True)
class DapFlPlayers:
    """Dap-FL: clients' agents alone, which see accuracy and loss and earn their difference; weights by data size."""

    heed_demand: ClassVar = False

    lr_min: Positive = 1e-3
    lr_max: Positive = 0.1
    epochs_max: Count = 20
    critic_lr: Positive = 1e-3
    actor_lr: Positive = 1e-4
    tau: Positive = 1e-3
    gamma: Positive = 0.99
    warm_up: Wait = 36
    explore_rounds: Wait = 50_000

    def sides(self, setup: Setup) -> tuple[Leaders, Follower]:
        ranges = Ranges(self.lr_min, self.lr_max, self.epochs_max, protocol="released" if setup.released else "clean")
        ddpg = DdpgSettings(self.actor_lr, self.critic_lr, self.tau, self.gamma)
        leaders = LearningLeaders(setup, ranges, Learning(ddpg, self.warm_up, self.explore_rounds), with_loss=True)
        return leaders, Fixed(setup)
