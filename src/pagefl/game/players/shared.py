"""PAGE with one point of lr and epochs for all clients, which they search together.

In the first rounds each client tries two moves near the point, goes on with the better one and tells six
numbers: lr and epochs of both, which was better, and by how much lr had to shrink. The server fits a surface
to these comparisons and moves the point to where it is higher for sure (`point_server.py`). Then all play
the point, and the learning rate decays at the end.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from pagefl.core import rng
from pagefl.core.algorithm import State
from pagefl.core.arrays import Floats, Integers
from pagefl.game.account import Account
from pagefl.game.budgets import BudgetOf, Budgets, check
from pagefl.game.protocol import ClientPolicy, Moves, Observation, Outcome, Players, ServerPolicy, Setup
from pagefl.game.rewards import DemandRatio

from .bounds import Count, Factor, NotNegative, Share
from .point_server import FEWEST_ROUNDS, PointServer
from .purse import Purse
from .surface import NOISE

FLOOR = 0.01  # added to a loss before it divides: a client with one class must not outweigh all others
STEEPEST = 0.1  # the largest fall of ln(lr) from round to round of the decay: in a short run it falls little
DEEPEST = 100.0  # by which lr is divided at the end of the decay
LEAST_LR = 1e-5


@dataclass(frozen=True)
class PageShared(Players):
    """PAGE with one point of lr and epochs for all clients, which they search together.

    span: lr stays between the task's lr divided by this and multiplied by it
    epochs_max: largest number of local epochs that can be chosen
    explore: share of the rounds, from the start, in which clients explore; 0: none
    decay: share of the rounds, at the end, in which lr decays
    price: of one epoch, as a share of the loss; more makes epochs rarer
    weights: of uploads: by data size and what the server has learned about their effect, or by size alone
    budget: of each client: seconds of a round, or joules of the run; 0 for none
    budget_of: what the clients' budget is of
    server_budget: mean seconds of a round's uploads, by their weights; 0 for none
    """

    uses_demand = True

    span: Factor = 30.0
    epochs_max: Count = 20
    explore: Share = 0.15
    decay: Share = 0.35
    price: NotNegative = 0.0
    weights: Literal["learned", "size"] = "learned"
    budget: NotNegative = 0.0
    budget_of: BudgetOf = "seconds"
    server_budget: NotNegative = 0.0

    def client_policy(self, setup: Setup) -> ClientPolicy:
        check(setup, clients=self.budget, server=self.server_budget)
        return SearchingClients(setup, self)

    def server_policy(self, setup: Setup) -> ServerPolicy:
        check(setup, clients=self.budget, server=self.server_budget)
        return PointServer(setup, self)

    def first_point(self, setup: Setup) -> Floats:
        """ln lr and ln epochs."""
        return self.within(np.log([setup.lr, setup.epochs]), setup)

    def within(self, points: Floats, setup: Setup) -> Floats:
        low = [np.log(max(LEAST_LR, setup.lr / self.span)), 0.0]
        high = [np.log(setup.lr * self.span), np.log(max(self.epochs_max, setup.epochs))]
        return np.clip(points, low, high)

    def free(self, setup: Setup) -> Floats:
        """1 for what is searched, 0 for what the settings hold fixed."""
        return np.array([factor not in setup.freeze for factor in ("eta", "alpha")], float)

    def longest(self, setup: Setup) -> float:
        """Rounds of exploration at most."""
        if not self.explore:
            return 0
        return min(max(FEWEST_ROUNDS, self.explore * setup.rounds), setup.rounds / 2)

    def decayed(self, round: int, rounds: int, demand: DemandRatio) -> float:
        """By which factor lr has fallen. Small steps at the end are for the shared model: the more it is in
        demand, the longer they last. Clients in demand end with larger steps, which personalise."""
        if not self.decay:
            return 1.0
        tipped = (demand.server - demand.clients) / (demand.server + demand.clients)
        share = self.decay + max(0.0, tipped) * max(0.0, 1 - self.explore - self.decay)
        passed = min(1.0, max(0.0, 1 - (1 - round / rounds) / share))
        deepest = DEEPEST ** (1 + min(0.0, tipped) / 2)
        return float(max(1 / deepest, np.exp(-STEEPEST * share * rounds)) ** passed)


class SearchingClients(ClientPolicy):
    uses_upload_loss = True

    def __init__(self, setup: Setup, players: PageShared) -> None:
        super().__init__(setup)
        self.players = players
        self.point = torch.tensor([*players.first_point(setup), 1.0], dtype=torch.float32)
        # ln lr and ln epochs of both moves, 1 if the second was better and -1 if the first was, and ln of the
        # factor by which lr had to shrink
        self.transition = torch.zeros(0, 6)
        self.playing: Integers = np.empty(0, np.int64)  # the clients that these are of
        self.before = np.empty(0)  # their losses before training
        self.purse = None
        if players.budget:
            own = Budgets(setup, players.budget, players.budget_of)
            self.purse = Purse(own, lambda points: players.within(points, setup), players.free(setup))

    @property
    def received(self) -> State:
        return {"point": self.point, **({"surface": self.purse.surface} if self.purse else {})}

    @property
    def exploring(self) -> bool:
        return bool(self.point[2] > 0) and not self.frozen

    @property
    def personal_lr(self) -> float:
        return float(np.exp(self.point[0].double().item()))

    def act(self, round: int, clients: Integers, seen: Observation) -> Moves:
        point = self.point[:2].double().numpy()
        points = np.tile(point, (len(clients), 1))
        if self.purse:
            points = self.purse.points(round, clients, seen, point)
        if self.exploring:
            keys = rng.keys(self.setup.seed, "exploring", round, (self.setup.first + clients).tolist())
            noise = NOISE * self.players.free(self.setup) * rng.normals(keys, 4).reshape(-1, 2, 2)
            tried = self.players.within(points[:, None] + noise, self.setup)
            if self.purse:
                tried = self.purse.pairs(tried)
            rows = np.column_stack([tried.reshape(-1, 4), np.zeros((len(clients), 2))])
            self.transition, self.playing = torch.from_numpy(rows).float(), clients
            self.before = seen.loss
            points = tried[:, 0]
        return self._moves(points, round, seen)

    def rivals(self, round: int, clients: Integers, seen: Observation) -> Moves | None:
        if not self.exploring:
            return None
        moves = self._moves(self.transition[self._places(clients), 2:4].double().numpy(), round, seen)
        if self.purse:  # some can pay for one move only
            moves.lr[self.purse.limit.epochs < 2] = 0.0
        return moves

    def limits(self, round: int, clients: Integers, seen: Observation) -> Floats | None:
        """Training must lower the objective. In the first round, any smaller lr that lowers it more is taken:
        a start that is far too large must not ruin a deep model for good."""
        if not self.exploring or "eta" in self.setup.freeze:
            return None
        return seen.loss if round > 1 else np.full(len(clients), -np.inf)

    def reward(self, round: int, clients: Integers, outcome: Outcome) -> None:
        if self.purse:
            self.purse.spend(clients, outcome, learn=not self.frozen)
        if not self.exploring:
            return
        who = self._places(clients)
        first, second = np.rint(np.exp(self.transition[who][:, [1, 3]].double().numpy())).T
        lead = outcome.lead / (self.before[who] + FLOOR) - self.players.price * (second - first)
        told = np.column_stack([np.sign(lead), np.log(outcome.shrunk)])
        self.transition[who, 4:] = torch.from_numpy(told).float()

    def experience(self, clients: Integers) -> State:
        if not self.exploring or not len(self.playing):
            return {"transition": torch.zeros(len(clients), 6)}
        return {"transition": self.transition[self._places(clients)]}

    def affords(self, round: int, clients: Integers, seen: Observation) -> Floats | None:
        return self.purse.limit_of(round, clients, seen).epochs if self.purse else None

    def account(self) -> Account | None:
        return self.purse.account if self.purse else None

    @property
    def tensors(self) -> State:
        return self.purse.budgets.tensors if self.purse else {}

    def _places(self, clients: Integers) -> Integers:
        return np.searchsorted(self.playing, clients)

    def _moves(self, points: Floats, round: int, seen: Observation) -> Moves:
        lr = np.exp(points[:, 0]) * self.players.decayed(round, self.setup.rounds, seen.demand)
        return Moves(lr, np.maximum(1, np.rint(np.exp(points[:, 1]))).astype(np.int64))
