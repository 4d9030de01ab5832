"""Dap-FL. Chen, Wang, Chen, Yan, Lin: Dap-FL: Federated Learning Flourishes by Adaptive Tuning and Secure
Aggregation. TPDS 2023."""

from dataclasses import dataclass

from pagefl.agents.ddpg import DdpgSettings
from pagefl.game.learner import Learning
from pagefl.game.protocol import ClientPolicy, Players, Setup
from pagefl.game.ranges import Ranges

from .bounds import Count, Positive, Rounds
from .client_agents import ClientAgents


@dataclass(frozen=True)
class DapFl(Players):
    """Clients' agents alone, which see accuracy and loss and earn their difference; weights by data size.

    lr_min: smallest learning rate that can be chosen
    lr_max: largest learning rate that can be chosen
    epochs_max: largest number of local epochs that can be chosen
    critic_lr: learning rate of the critics
    actor_lr: learning rate of the actors
    tau: step of the target networks towards the learned ones
    gamma: discount of future rewards in the critics
    warm_up: rounds of random play that fill the replay memory
    explore_rounds: rounds over which the exploration noise fades to zero
    """

    agent_per_client = True

    lr_min: Positive = 1e-3
    lr_max: Positive = 0.1
    epochs_max: Count = 20
    critic_lr: Positive = 1e-3
    actor_lr: Positive = 1e-4
    tau: Positive = 1e-3
    gamma: Positive = 0.99
    warm_up: Rounds = 36
    explore_rounds: Rounds = 50_000

    def client_policy(self, setup: Setup) -> ClientPolicy:
        ranges = Ranges(
            self.lr_min, self.lr_max, self.epochs_max, protocol="released" if setup.released else "clean"
        )
        ddpg = DdpgSettings(self.actor_lr, self.critic_lr, self.tau, self.gamma)
        learning = Learning(ddpg, self.warm_up, self.explore_rounds)
        return ClientAgents(
            setup,
            ranges,
            learning,
            state=lambda seen: [seen.accuracy, seen.loss],
            earned=lambda outcome: outcome.accuracy - outcome.loss,
        )
