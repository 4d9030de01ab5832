"""PAGE. Chen, Wang, Hu, Yan, Zhou, Lin: PAGE: Equilibrate Personalization and Generalization in Federated
Learning. WWW 2024."""

from dataclasses import dataclass

import numpy as np

from pagefl.agents.ddpg import DdpgSettings, Losses
from pagefl.core.algorithm import State
from pagefl.core.arrays import Floats, Integers
from pagefl.core.evaluate import Scores
from pagefl.game.account import Account
from pagefl.game.budgets import BudgetOf, Budgets, check
from pagefl.game.learner import Learner, Learning, Scale
from pagefl.game.protocol import ClientPolicy, Outcome, Players, ServerPolicy, Setup
from pagefl.game.ranges import Ranges
from pagefl.game.uploads import Uploads

from .bounds import Count, NotNegative, Positive, Rounds
from .client_agents import BudgetedAgents, ClientAgents
from .server_budget import ServerBudget


@dataclass(frozen=True)
class Page(Players):
    """Every client's DDPG agent picks its lr and epochs; the server's agent picks the weights.

    lr_min: smallest learning rate that can be chosen
    lr_max: largest learning rate that can be chosen
    epochs_max: largest number of local epochs that can be chosen
    temperature: of the softmax that makes weights; smaller values give larger differences
    critic_lr: learning rate of the critics
    actor_lr: learning rate of the actors
    tau: step of the target networks towards the learned ones
    gamma: discount of future rewards in the critics
    warm_up: rounds of random play that fill the replay memory
    explore_rounds: rounds over which the exploration noise fades to zero
    rewards: learn from rewards as they are, their logarithm, or standardised over the replay memory
    budget: of each client: seconds of a round, or joules of the run; 0 for none
    budget_of: what the clients' budget is of
    server_budget: mean seconds of a round's uploads, by their weights; 0 for none
    """

    uses_demand = True
    agent_per_client = True

    lr_min: Positive = 1e-3
    lr_max: Positive = 0.1
    epochs_max: Count = 20
    temperature: Positive = 1.0
    critic_lr: Positive = 5e-3
    actor_lr: Positive = 5e-4
    tau: Positive = 5e-3
    gamma: Positive = 0.99
    warm_up: Rounds = 36
    explore_rounds: Rounds = 500
    rewards: Scale = "raw"
    budget: NotNegative = 0.0
    budget_of: BudgetOf = "seconds"
    server_budget: NotNegative = 0.0

    def client_policy(self, setup: Setup) -> ClientPolicy:
        """State: the shared model's accuracy on the client's data, and the price of its budget if it has one.
        Reward: 1 / loss of its own model."""
        check(setup, clients=self.budget, server=self.server_budget)
        who = (setup, self._ranges(setup), self._learning(self.explore_rounds))
        if not self.budget:
            return ClientAgents(*who, state=seen_by, earned=earned_by)
        return BudgetedAgents(
            *who, Budgets(setup, self.budget, self.budget_of), state=seen_by, earned=earned_by
        )

    def server_policy(self, setup: Setup) -> ServerPolicy:
        check(setup, clients=self.budget, server=self.server_budget)
        # it does not explore after the warm-up
        budget = ServerBudget(self.server_budget) if self.server_budget else None
        return PageServer(setup, self._ranges(setup), self._learning(0), budget)

    def _ranges(self, setup: Setup) -> Ranges:
        return Ranges(
            self.lr_min,
            self.lr_max,
            self.epochs_max,
            self.temperature,
            "released" if setup.released else "clean",
        )

    def _learning(self, explore_rounds: int) -> Learning:
        ddpg = DdpgSettings(self.actor_lr, self.critic_lr, self.tau, self.gamma)
        return Learning(ddpg, self.warm_up, explore_rounds, self.rewards)


def seen_by(scores: Scores) -> list[Floats]:
    return [scores.accuracy]


def earned_by(outcome: Outcome) -> Floats:
    return outcome.reward


class PageServer(ServerPolicy):
    """State: every upload's accuracy on the server's game half. Reward: 1 / loss of the new model there."""

    looks_at_uploads = True

    def __init__(
        self, setup: Setup, ranges: Ranges, learning: Learning, budget: ServerBudget | None = None
    ) -> None:
        super().__init__(setup)
        self.ranges, self.budget = ranges, budget
        self.learner = Learner("server", 1, setup.clients, setup.clients, setup.rounds, setup.seed, learning)

    def observe(self, round: int, clients: Integers, uploads: Uploads) -> Losses | None:
        return self.learner.observe(round, ONE, self._state(clients, uploads))

    def act(self, round: int, clients: Integers, uploads: Uploads) -> Floats:
        action = self.learner.act(round, ONE, self._state(clients, uploads))
        weights = self.ranges.weights(action[0, clients])
        return self.budget.kept(weights, uploads) if self.budget else weights

    def affords(self, weights: Floats, seconds: Floats) -> bool:
        return self.budget is None or self.budget.affords(weights, seconds)

    def account(self) -> Account | None:
        return self.budget.account if self.budget else None

    def reward(self, round: int, reward: float) -> None:
        self.learner.reward(ONE, np.array([reward]))

    def _state(self, clients: Integers, uploads: Uploads) -> Floats:
        state = np.zeros((1, self.learner.ddpg.states))  # absent clients: zero
        state[0, clients] = uploads.accuracy
        return state

    @property
    def tensors(self) -> State:
        return self.learner.tensors

    def load(self, tensors: State) -> None:
        self.learner.load(tensors)

    def freeze(self) -> None:
        self.learner.frozen = True


ONE = np.array([0])  # the server's only agent
