"""PAGE with one point of lr and epochs for all clients, which they search together.

In the first rounds each client tries a move near the point and tells five numbers: its lr, its epochs, by
which share its objective fell, how large its loss was before, and by how much lr had to shrink. The server
fits a surface to what the last rounds told and moves the point to its top. Then all play the point, and the
learning rate decays at the end.
"""

from dataclasses import dataclass

import numpy as np
import torch

from pagefl.agents.ddpg import Losses
from pagefl.core import rng
from pagefl.core.algorithm import State
from pagefl.core.arrays import Floats, Integers
from pagefl.game.protocol import ClientPolicy, Moves, Observation, Outcome, Players, ServerPolicy, Setup
from pagefl.game.rewards import DemandRatio

from .bounds import Count, Factor, NotNegative, Share

NOISE = np.array([1.0, 0.7])  # standard deviations of ln lr and ln epochs while clients explore
REACH = np.array([1.0, 0.7])  # by how much the point moves in a round at most
FEWEST_ROUNDS = 10  # of exploration
ENOUGH_ROUNDS, ENOUGH_TOLD = 20, 2000  # rounds and transitions after which it ends before its time
RECENT, ROWS = 6, 400  # the surface is fitted to the transitions of so many rounds, and to as many at least
ENOUGH_FITTED = 40  # transitions below which the point stays
KEPT = 200  # transitions of a round that the server keeps
LARGEST, SMALLEST = 50.0, -7.0  # logarithms that a client can send: at most three tenths of a rate
RIDGE = 1.0
FLOOR = 0.01  # added to a loss before it divides: a client with one class must not outweigh all others
WORST = -10.0  # the gain of a client that had to train again
STEEPEST = 0.1  # the largest fall of ln(lr) from round to round of the decay: in a short run it falls little
DEEPEST = 100.0  # by which lr is divided at the end of the decay
LEAST_LR = 1e-5


@dataclass(frozen=True)
class PageShared(Players):
    """PAGE with one point of lr and epochs for all clients, which they search together; weights by data size.

    span: lr stays between the task's lr divided by this and multiplied by it
    epochs_max: largest number of local epochs that can be chosen
    explore: share of the rounds, from the start, in which clients explore; 0: none
    decay: share of the rounds, at the end, in which lr decays
    price: of one epoch, as a share of the loss; more makes epochs rarer
    """

    uses_demand = True

    span: Factor = 30.0
    epochs_max: Count = 20
    explore: Share = 0.15
    decay: Share = 0.35
    price: NotNegative = 0.0

    def client_policy(self, setup: Setup) -> ClientPolicy:
        return SearchingClients(setup, self)

    def server_policy(self, setup: Setup) -> ServerPolicy:
        return PointServer(setup, self)

    def first_point(self, setup: Setup) -> Floats:
        """ln lr and ln epochs."""
        return self.within(np.log([setup.lr, setup.epochs]), setup)

    def within(self, points: Floats, setup: Setup) -> Floats:
        low = [np.log(max(LEAST_LR, setup.lr / self.span)), 0.0]
        high = [np.log(setup.lr * self.span), np.log(max(self.epochs_max, setup.epochs))]
        return np.clip(points, low, high)

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
        # ln lr, ln epochs, gain, ln of the loss before, ln of the factor by which lr had to shrink
        self.transition = torch.zeros(setup.clients, 5)

    @property
    def received(self) -> State:
        return {"point": self.point}

    @property
    def exploring(self) -> bool:
        return bool(self.point[2] > 0) and not self.frozen

    @property
    def personal_lr(self) -> float:
        return float(np.exp(self.point[0].double().item()))

    def act(self, round: int, clients: Integers, seen: Observation) -> Moves:
        point = np.tile(self.point[:2].double().numpy(), (len(clients), 1))
        if self.exploring:
            keys = rng.keys(self.setup.seed, "exploring", round, (self.setup.first + clients).tolist())
            point = self.players.within(point + NOISE * rng.normals(keys, 2), self.setup)
            loss = np.log(np.maximum(seen.loss, 1e-3))
            rows = np.column_stack([point, np.full(len(clients), WORST), loss, np.zeros(len(clients))])
            self.transition[torch.from_numpy(clients)] = torch.from_numpy(rows).float()
        epochs = np.maximum(1, np.rint(np.exp(point[:, 1]))).astype(np.int64)
        return Moves(
            np.exp(point[:, 0]) * self.players.decayed(round, self.setup.rounds, seen.demand), epochs
        )

    def limits(self, round: int, clients: Integers, seen: Observation) -> Floats | None:
        """Training must lower the objective. In the first round, any smaller lr that lowers it more is taken:
        a start that is far too large must not ruin a deep model for good."""
        if not self.exploring:
            return None
        return seen.loss if round > 1 else np.full(len(clients), -np.inf)

    def reward(self, round: int, clients: Integers, outcome: Outcome) -> None:
        if not self.exploring:
            return
        who = torch.from_numpy(clients)
        before = np.exp(self.transition[who, 3].double().numpy())
        fell = (before - outcome.upload_loss - outcome.added) / (before + FLOOR)
        paid = fell - self.players.price * np.rint(np.exp(self.transition[who, 1].double().numpy()))
        gain = np.where(outcome.shrunk < 1, WORST, np.clip(paid, WORST, 1.0))
        self.transition[who, 2] = torch.from_numpy(gain).float()
        self.transition[who, 4] = torch.from_numpy(np.log(outcome.shrunk)).float()

    def experience(self, clients: Integers) -> State:
        return {"transition": self.transition[torch.from_numpy(clients)]}


class PointServer(ServerPolicy):
    """Moves the point to the top of a surface, fitted to the gains that clients told."""

    def __init__(self, setup: Setup, players: PageShared) -> None:
        super().__init__(setup)
        self.players = players
        self.point = torch.from_numpy(players.first_point(setup))
        self.exploring = torch.tensor([players.longest(setup) >= 1])
        self.told = torch.zeros(1, dtype=torch.long)  # transitions so far
        self.later = torch.zeros(3, dtype=torch.float64)  # sum and number of the points of the later half
        # round (0: no transition yet), ln lr, ln epochs, score, standardised ln of the loss before
        self.past = torch.zeros(RECENT * KEPT + ROWS, 5, dtype=torch.float64)

    @property
    def sent(self) -> State:
        return {"point": torch.cat([self.point, self.exploring.double()]).float()}

    @property
    def personal_lr(self) -> float:
        return float(np.exp(self.sent["point"][0].double().item()))

    def update(self, round: int, experience: State) -> Losses | None:
        if self.frozen or not self.exploring:
            return None
        rows = self._sound(experience["transition"].double().numpy())
        if len(rows) > KEPT:
            chosen = rng.stream(self.setup.seed, "kept lessons", round).choice(len(rows), KEPT, replace=False)
            rows = rows[np.sort(chosen)]
        self.told += len(rows)
        if round == 1 and len(rows):  # a start that is far too large is left at once
            self.point[0] += rows[:, 4].mean()
            self.point.copy_(torch.from_numpy(self.players.within(self.point.numpy(), self.setup)))
        if len(rows) > 1:
            past = self._remember(round, rows)
            if len(past) >= ENOUGH_FITTED:
                self.point.copy_(torch.from_numpy(self._top(past)))
        longest = self.players.longest(self.setup)
        if round > longest / 2:
            self.later += torch.cat([self.point, torch.ones(1)])
        if round >= longest or (round >= ENOUGH_ROUNDS and self.told >= ENOUGH_TOLD):
            self.exploring[:] = False
            if self.later[2]:
                self.point.copy_(self.later[:2] / self.later[2])
        return None

    def _remember(self, round: int, rows: Floats) -> Floats:
        """The transitions that the surface is fitted to: those of the last rounds, or the last ones."""
        loss = (rows[:, 3] - rows[:, 3].mean()) / (rows[:, 3].std() + 1e-9)
        new = np.column_stack([np.full(len(rows), round), rows[:, :2], ranked(rows[:, 2]), loss])
        past = self.past.numpy()
        past = np.concatenate([past[past[:, 0] > 0], new])
        wanted = max(ROWS, int((past[:, 0] > round - RECENT).sum()))
        past = past[-wanted:]
        self.past.zero_()[: len(past)] = torch.from_numpy(past)
        return past

    def _top(self, past: Floats) -> Floats:
        """The highest point of the surface that can be reached in one round."""
        point = self.point.numpy()
        inputs = np.column_stack([quadratic((past[:, 1:3] - point) / NOISE), past[:, 4], np.ones(len(past))])
        # not by BLAS, whose sums depend on its threads
        normal = np.einsum("ni,nj->ij", inputs, inputs) + np.diag([RIDGE] * 6 + [1e-6])
        surface = np.linalg.solve(normal, np.einsum("ni,n->i", inputs, past[:, 3]))[:5]
        steps = np.linspace(-1, 1, 41)
        near = np.stack(np.meshgrid(steps, steps), -1).reshape(-1, 2) * REACH + point
        near = self.players.within(near, self.setup)
        heights = np.einsum("ni,i->n", quadratic((near - point) / NOISE), surface)
        return np.asarray(near[heights.argmax()])

    def _sound(self, rows: Floats) -> Floats:
        """The rows that a client can have sent."""
        gain, shrunk, rest = rows[:, 2], rows[:, 4], np.abs(rows[:, [0, 1, 3]])
        known = (gain >= WORST) & (gain <= 1) & (shrunk >= SMALLEST) & (shrunk <= 0)
        return np.asarray(rows[known & (rest < LARGEST).all(1)])

    @property
    def tensors(self) -> State:
        names = ("point", "exploring", "told", "later", "past")
        return {name: getattr(self, name) for name in names}


def ranked(gains: Floats) -> Floats:
    """Scores by rank within a round, of mean 0 and standard deviation 1."""
    _, where, counts = np.unique(gains, return_inverse=True, return_counts=True)
    below = np.cumsum(counts) - counts / 2  # who gained the same has the same rank
    return np.asarray((below[where] / len(gains) - 0.5) * np.sqrt(12))


def quadratic(points: Floats) -> Floats:
    lr, epochs = points.T
    return np.stack([lr, epochs, lr**2, epochs**2, lr * epochs], axis=1)
