"""A DDPG agent for each client. PAGE's and Dap-FL's differ in what they see and earn."""

from collections.abc import Callable

import numpy as np

from pagefl.agents.ddpg import Losses
from pagefl.core.algorithm import State
from pagefl.core.arrays import Floats, Integers
from pagefl.core.evaluate import Scores
from pagefl.game.learner import Learner, Learning
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
        states = len(state(Scores(np.zeros(0), np.zeros(0))))
        self.learner = Learner(
            "client", setup.clients, states, 2, setup.rounds, setup.seed, learning, setup.first
        )

    def observe(self, round: int, clients: Integers, seen: Observation) -> Losses | None:
        return self.learner.observe(round, clients, np.stack(self.state(seen.scores), axis=1))

    def act(self, round: int, clients: Integers, seen: Observation) -> Moves:
        action = self.learner.act(round, clients, np.stack(self.state(seen.scores), axis=1))
        return Moves(self.ranges.lr(action[:, 0]), self.ranges.epochs(action[:, 1]))

    def reward(self, round: int, clients: Integers, outcome: Outcome) -> None:
        self.learner.reward(clients, self.earned(outcome))

    @property
    def tensors(self) -> State:
        return self.learner.tensors

    def load(self, tensors: State) -> None:
        self.learner.load(tensors)

    def freeze(self) -> None:
        self.learner.frozen = True
