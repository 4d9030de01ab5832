"""A DDPG agent for each client. PAGE's and Dap-FL's differ in what they see and earn."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from pagefl.agents.ddpg import Losses
from pagefl.core.algorithm import State
from pagefl.core.arrays import Floats, Integers
from pagefl.core.evaluate import Scores
from pagefl.game.account import Account
from pagefl.game.budgets import Budgets, Limit, shares
from pagefl.game.learner import Learner, Learning
from pagefl.game.messages import NOBODY
from pagefl.game.multipliers import Charge, Multipliers
from pagefl.game.protocol import ClientPolicy, Moves, Observation, Outcome, Setup
from pagefl.game.ranges import Ranges


class ClientAgents(ClientPolicy):
    def __init__(
        self,
        setup: Setup,
        ranges: Ranges,
        learning: Learning,
        *,
        state: Callable[[Scores], list[Floats]],
        earned: Callable[[Outcome], Floats],
    ) -> None:
        """`state`: the columns of what agents see. `earned`: what they learn from."""
        super().__init__(setup)
        self.ranges, self.state, self.earned = ranges, state, earned
        self.learner = Learner(
            "client", setup.clients, self.states, 2, setup.rounds, setup.seed, learning, setup.first
        )

    @property
    def states(self) -> int:
        return len(self.state(Scores(np.zeros(0), np.zeros(0))))

    def observe(self, round: int, clients: Integers, seen: Observation) -> Losses | None:
        return self.learner.observe(round, clients, self._state(clients, seen))

    def act(self, round: int, clients: Integers, seen: Observation) -> Moves:
        action = self.learner.act(round, clients, self._state(clients, seen))
        return Moves(self.ranges.lr(action[:, 0]), self.ranges.epochs(action[:, 1]))

    def reward(self, round: int, clients: Integers, outcome: Outcome) -> None:
        self.learner.reward(clients, self.earned(outcome))

    def _state(self, clients: Integers, seen: Observation) -> Floats:
        return np.stack(self.state(seen.scores), axis=1)

    @property
    def tensors(self) -> State:
        return self.learner.tensors

    def load(self, tensors: State) -> None:
        self.learner.load(tensors)

    def freeze(self) -> None:
        self.frozen = self.learner.frozen = True


class BudgetedAgents(ClientAgents):
    """Agents that pay for what their epochs cost. The price is part of their state."""

    def __init__(
        self,
        setup: Setup,
        ranges: Ranges,
        learning: Learning,
        budgets: Budgets,
        *,
        state: Callable[[Scores], list[Floats]],
        earned: Callable[[Outcome], Floats],
    ) -> None:
        super().__init__(setup, ranges, learning, state=state, earned=earned)
        self.budgets, self.multipliers = budgets, Multipliers(setup.clients)
        self.asked, self.used = NOBODY, np.empty(0)  # in this round: who acts, and what of it they used
        self.limit = Limit(*np.empty((3, 0)))

    @property
    def states(self) -> int:
        return super().states + 1

    def _state(self, clients: Integers, seen: Observation) -> Floats:
        return np.column_stack([super()._state(clients, seen), self.multipliers.weight(clients)])

    def observe(self, round: int, clients: Integers, seen: Observation) -> Losses | None:
        assert seen.prices is not None
        limit = self.budgets.limit(round, clients, seen.prices)
        self.asked, self.limit, self.used = clients, limit, np.full(len(clients), np.nan)

        def cost(places: Integers, actions: Tensor) -> Tensor:
            epochs = self.ranges.epochs(actions[..., 1].double().numpy())
            fixed, epoch, most = (own[places, None] for own in (limit.fixed, limit.epoch, limit.reachable))
            return torch.from_numpy((fixed + epoch * epochs) / most).float()

        charge = Charge(self.multipliers.weight(clients), cost)
        return self.learner.observe(round, clients, self._state(clients, seen), charge)

    def reward(self, round: int, clients: Integers, outcome: Outcome) -> None:
        super().reward(round, clients, outcome)
        assert outcome.costs is not None
        places, cost = np.searchsorted(self.asked, clients), self.budgets.costs(outcome.costs)
        limit = self.limit.of(places)
        self.used[places] = shares(cost, limit.budget)
        if self.frozen:
            return
        self.budgets.spend(clients, outcome.costs)
        if round > self.learner.learning.warm_up:  # random play says nothing of a price
            self.multipliers.learn(clients, cost / limit.reachable)

    def affords(self, round: int, clients: Integers, seen: Observation) -> Floats:
        assert seen.prices is not None
        return self.budgets.limit(round, clients, seen.prices).epochs

    def account(self) -> Account:
        return Account(self.multipliers.of(self.asked) * self.learner.spread(self.asked), self.used)

    @property
    def tensors(self) -> State:
        own = {f"prices.{name}": value for name, value in self.multipliers.tensors.items()}
        return {**self.learner.tensors, **own, **self.budgets.tensors}

    def load(self, tensors: State) -> None:
        super().load(tensors)
        for own in (f"prices.{name}" for name in self.multipliers.tensors), self.budgets.tensors:
            for name in own:
                self.tensors[name].copy_(tensors[name])
