"""PAGE with one point of lr and epochs for all clients, which they search together.

In the first rounds each client tries two moves near the point, goes on with the better one and tells six
numbers: lr and epochs of both, which was better, and by how much lr had to shrink. The server fits a surface
to these comparisons and moves the point to where it is higher for sure. It lowers lr where the average of
a few uploads went too far. Then all play the point, and the learning rate decays at the end.

The server weighs uploads by their sizes and by what it has learned about their effect (`trust.py`).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from pagefl.agents.ddpg import Losses
from pagefl.core import rng
from pagefl.core.algorithm import State
from pagefl.core.arrays import Floats, Integers
from pagefl.game.account import Account
from pagefl.game.budgets import BudgetOf, Budgets, check
from pagefl.game.protocol import (
    ClientPolicy,
    Moves,
    Observation,
    Outcome,
    Players,
    ServerPolicy,
    Setup,
    by_size,
)
from pagefl.game.rewards import DemandRatio
from pagefl.game.uploads import Uploads

from .bounds import Count, Factor, NotNegative, Share
from .purse import Purse
from .server_budget import ServerBudget
from .surface import NOISE, moved, quadratic
from .trust import FEW, Trust

FEWEST_ROUNDS = 10  # of exploration
ENOUGH_TOLD = 1000  # comparisons after which it ends before its time
RECENT, ROWS = 6, 400  # the surface is fitted to the comparisons of so many rounds, and to as many at least
KEPT = 200  # comparisons of a round that the server keeps
SMALLEST = -7.0  # ln of the factor of lr that a client can send: three times a tenth
ROUNDED = 1e-4  # by which a move that was sent may be outside the range
RIDGE = 1.0
PRIOR = 3  # comparisons of variance 1 that stand for what is not known before the first ones
SHORTEST = 0.5  # the smallest best length of a step that is believed: that of one round is noisy
LOWERED = 0.5  # by which power of it lr is lowered
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


class PointServer(ServerPolicy):
    """Moves the point to the top of a surface, fitted to what clients told of two moves each."""

    looks_at_uploads = True

    def __init__(self, setup: Setup, players: PageShared) -> None:
        super().__init__(setup)
        self.players = players
        self.point = torch.from_numpy(players.first_point(setup))
        self.exploring = torch.tensor([players.longest(setup) >= 1 and bool(players.free(setup).any())])
        self.told = torch.zeros(1, dtype=torch.long)  # comparisons so far
        # round (0: no comparison yet), ln lr and ln epochs of both moves, which was better
        self.past = torch.zeros(RECENT * KEPT + ROWS, 6, dtype=torch.float64)
        self.trust = Trust(setup.clients) if players.weights == "learned" else None
        self.surface = torch.zeros(5, dtype=torch.float64)  # fitted last, around the point
        self.longer: float | None = None  # ln of what the search made of lr × epochs; None: there was none
        self.budget = ServerBudget(players.server_budget) if players.server_budget else None

    @property
    def sent(self) -> State:
        point = {"point": torch.cat([self.point, self.exploring.double()]).float()}
        return {**point, **({"surface": self.surface.float()} if self.players.budget else {})}

    @property
    def personal_lr(self) -> float:
        return float(np.exp(self.sent["point"][0].double().item()))

    def update(self, round: int, experience: State) -> Losses | None:
        self.longer = None
        if self.frozen or not self.exploring:
            return None
        before = float(self.point.sum())
        rows = self._sound(experience["transition"].double().numpy())
        if len(rows) > KEPT:
            chosen = rng.stream(self.setup.seed, "kept lessons", round).choice(len(rows), KEPT, replace=False)
            rows = rows[np.sort(chosen)]
        if len(rows):
            if round == 1:  # a start that is far too large is left at once
                self.point[0] += rows[:, 5].mean()
                self.point.copy_(torch.from_numpy(self.players.within(self.point.numpy(), self.setup)))
            self.told += len(rows)
            self.point.copy_(torch.from_numpy(self._top(self._remember(round, rows))))
        self.longer = float(self.point.sum()) - before
        enough = round >= FEWEST_ROUNDS and self.told >= ENOUGH_TOLD
        if round >= self.players.longest(self.setup) or enough:
            self.exploring[:] = False
        return None

    def observe(self, round: int, clients: Integers, uploads: Uploads) -> Losses | None:
        if self.trust and not self.frozen and "p" not in self.setup.freeze:
            self.trust.learn(clients, uploads)
        if self.longer is not None and 0 < len(clients) < FEW and self.players.free(self.setup)[0]:
            self._shorten(uploads.best_length(self._weights(clients, uploads)), self.longer)
        return None

    def act(self, round: int, clients: Integers, uploads: Uploads) -> Floats:
        weights = self._weights(clients, uploads)
        return self.budget.kept(weights, uploads) if self.budget else weights

    def affords(self, weights: Floats, seconds: Floats) -> bool:
        return self.budget is None or self.budget.affords(weights, seconds)

    def account(self) -> Account | None:
        return self.budget.account if self.budget else None

    def regard(self, round: int, clients: Integers, uploads: Uploads, name: str) -> Floats | None:
        return self.trust.regard(clients, uploads.lengths(name)) if self.trust else None

    def _weights(self, clients: Integers, uploads: Uploads) -> Floats:
        return self.trust.weights(clients, uploads) if self.trust else by_size(uploads)

    def _shorten(self, best: float, longer: float) -> None:
        """What is best for each client goes too far for an average of few unlike ones. Where the best length
        of the step to it, relative to what it was, is below 1, training gets shorter."""
        if best >= 1:
            return
        point = self.point.numpy().copy()
        point[0] += min(0.0, LOWERED * np.log(max(best, SHORTEST)) - longer)
        point = self.players.within(point, self.setup)
        self.surface.copy_(
            torch.from_numpy(moved(self.surface.numpy(), (point - self.point.numpy()) / NOISE))
        )
        self.point.copy_(torch.from_numpy(point))

    def _remember(self, round: int, rows: Floats) -> Floats:
        """The comparisons that the surface is fitted to: those of the last rounds, or the last ones."""
        past = self.past.numpy()
        new = np.column_stack([np.full(len(rows), round), rows[:, :5]])
        past = np.concatenate([past[past[:, 0] > 0], new])
        wanted = max(ROWS, int((past[:, 0] > round - RECENT).sum()))
        past = past[-wanted:]
        self.past.zero_()[: len(past)] = torch.from_numpy(past)
        return past

    def _top(self, past: Floats) -> Floats:
        """Within reach, the point whose height above this one, less its standard error, is largest: with few
        comparisons, or contradictory ones, that is this point itself."""
        point, better = self.point.numpy(), past[:, 5]
        inputs = quadratic((past[:, 3:5] - point) / NOISE) - quadratic((past[:, 1:3] - point) / NOISE)
        # not by BLAS, whose sums depend on its threads
        normal = np.linalg.inv(np.einsum("ni,nj->ij", inputs, inputs) + RIDGE * np.eye(5))
        surface = np.einsum("ij,nj,n->i", normal, inputs, better)
        left = better - np.einsum("ni,i->n", inputs, surface)
        variance = (np.einsum("n,n->", left, left) + PRIOR) / (len(left) + PRIOR)
        steps = np.linspace(-1, 1, 41)
        near = np.stack(np.meshgrid(steps, steps), -1).reshape(-1, 2) * NOISE
        near = self.players.within(near * self.players.free(self.setup) + point, self.setup)
        above = quadratic((near - point) / NOISE)
        error = np.sqrt(variance * np.einsum("ni,ij,nj->n", above, normal, above))
        top = near[(np.einsum("ni,i->n", above, surface) - error).argmax()]
        self.surface.copy_(torch.from_numpy(moved(surface, (top - point) / NOISE)))
        return np.asarray(top)

    def _sound(self, rows: Floats) -> Floats:
        """The rows that a client can have sent. A move far outside the range would outweigh all others."""
        better, shrunk, tried = np.abs(rows[:, 4]), rows[:, 5], rows[:, :4].reshape(-1, 2)
        known = (better <= 1) & (shrunk >= SMALLEST) & (shrunk <= 0)
        inside = np.abs(self.players.within(tried, self.setup) - tried) < ROUNDED
        return np.asarray(rows[known & inside.reshape(-1, 4).all(1)])

    @property
    def tensors(self) -> State:
        names = ("point", "exploring", "told", "past", *("surface",) * bool(self.players.budget))
        searched = {name: getattr(self, name) for name in names}
        if self.trust is None:
            return searched
        return {**searched, "trust": self.trust.tensor, "usual_score": self.trust.usual}
