"""The server of page-shared: moves the point that all clients play, and weighs their uploads.

It lowers lr where the average of a few uploads went too far. It weighs uploads by their sizes and by what it
has learned about their effect (`trust.py`).
"""

from typing import TYPE_CHECKING

import numpy as np
import torch

from pagefl.agents.ddpg import Losses
from pagefl.core import rng
from pagefl.core.algorithm import State
from pagefl.core.arrays import Floats, Integers
from pagefl.game.account import Account
from pagefl.game.protocol import ServerPolicy, Setup, by_size
from pagefl.game.uploads import Uploads

from .server_budget import ServerBudget
from .surface import NOISE, moved, quadratic
from .trust import FEW, Trust

if TYPE_CHECKING:
    from .shared import PageShared

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


class PointServer(ServerPolicy):
    """Moves the point to the top of a surface, fitted to what clients told of two moves each."""

    looks_at_uploads = True

    def __init__(self, setup: Setup, players: "PageShared") -> None:
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
