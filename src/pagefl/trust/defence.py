"""Defence: robust means in place of weighted sums, so that every algorithm that adds uploads up is robust."""

from dataclasses import dataclass
from math import ceil

import numpy as np
import torch
from torch import Tensor

from pagefl.core import rng
from pagefl.core.algorithm import State
from pagefl.core.arrays import Floats, Integers
from pagefl.core.uploaded import Uploaded

from .before.bucketing import buckets
from .before.nnm import nearest_neighbours
from .defences import OF_COLUMNS, OF_UPDATES
from .geometry import Numbers
from .updates import Updates


@dataclass(frozen=True)
class Defence:
    """One rule, and what is done before it. It is a `Treatment` of a server's uploads."""

    name: str = "none"
    before: str = "none"
    share: float = 0.2  # of clients that may be hostile
    bound: float = 1.0
    steps: int = 3
    bucket: int = 2
    seed: int = 0

    def __call__(self, uploads: Uploaded, origin: State, round: int) -> Uploaded:
        return Defended(uploads, origin, self, round)

    def hostile(self, count: int) -> int:
        """The most of so many uploads that may be hostile. They are never half of them."""
        return min(ceil(self.share * count - 1e-9), (count - 1) // 2)

    def shares(self, updates: Updates, weights: Floats, ids: Integers, round: int) -> Floats:
        """The result as weights of the clients' updates, by a rule that looks at whole updates."""
        mix, gram, own = self._mixed(updates, weights, ids, round)
        found = OF_UPDATES[self.name](gram, own, self._numbers(len(weights), len(own)))
        return found if mix is None else np.asarray(found @ mix)

    def of_columns(self, updates: Updates, name: str, weights: Floats, ids: Integers, round: int) -> Tensor:
        """One array of the result, flat, by a rule that looks at each column."""
        mix, _, own = self._mixed(updates, weights, ids, round)
        numbers, rule = self._numbers(len(weights), len(own)), OF_COLUMNS[self.name]
        parts = []
        for part in updates.columns(name):
            mixed = part if mix is None else torch.from_numpy(mix).to(part) @ part
            parts.append(rule(mixed, torch.from_numpy(own).to(part), numbers))
        return torch.cat(parts)

    def mean(self, updates: Updates, ids: Integers, round: int) -> Tensor:
        """Of all arrays, with equal weights: what an attacker expects to become of uploads."""
        weights = np.full(len(ids), 1 / len(ids))
        if self.name in OF_COLUMNS:
            own = [self.of_columns(updates, name, weights, ids, round) for name in updates.uploads]
            return torch.cat(own)
        shares = torch.from_numpy(self.shares(updates, weights, ids, round))
        return torch.cat([shares @ part for name in updates.uploads for part in updates.columns(name)])

    def _numbers(self, clients: int, rows: int) -> Numbers:
        return Numbers(min(self.hostile(clients), (rows - 1) // 2), self.bound, self.steps)

    def _mixed(
        self, updates: Updates, weights: Floats, ids: Integers, round: int
    ) -> tuple[Floats | None, Floats, Floats]:
        """How updates are mixed (None: not at all), and the inner products and weights of the result."""
        if self.before == "none":
            return None, NOTHING if self.name in OF_COLUMNS else updates.gram, weights
        if self.before == "nnm":
            mix = nearest_neighbours(updates.gram, weights, self.hostile(len(weights)))
            own = np.full(len(weights), 1 / len(weights))  # weights are in the means already
        else:
            # by the clients' numbers: the draw does not depend on the order in which they are listed
            keys = rng.keys(self.seed, "buckets", round, ids.tolist())
            mix = buckets(np.argsort(keys, kind="stable"), weights, self.bucket)
            own = (mix > 0) @ weights
        gram = NOTHING if self.name in OF_COLUMNS else mix @ updates.gram @ mix.T
        return mix, gram, own


NOTHING = np.empty((0, 0))


class Defended(Uploaded):
    """Uploads whose weighted sums are robust: the sum of the weights, times a robust mean."""

    def __init__(self, uploads: Uploaded, origin: State, defence: Defence, round: int) -> None:
        super().__init__(uploads.source, uploads.ids)
        self.uploads, self.origin, self.defence, self.round = uploads, origin, defence, round
        self.updates = Updates(uploads, origin)

    def sum(self, name: str, weights: Tensor) -> Tensor:
        total = float(weights.double().sum())
        if not total:
            return self.uploads.sum(name, weights)
        own, origin = (weights.double() / total).numpy(), self.origin.get(name)
        if self.defence.name in OF_COLUMNS:
            found = self.defence.of_columns(self.updates, name, own, self.ids, self.round)
            rows = self.uploads[name]
            moved = total * found.to(rows).view(rows.shape[1:])
            return moved if origin is None else moved + total * origin
        shares = self.defence.shares(self.updates, own, self.ids, self.round)
        moved = self.uploads.sum(name, torch.from_numpy(total * shares).to(weights))
        return moved if origin is None else moved + total * (1 - float(shares.sum())) * origin

    def __getitem__(self, name: str) -> Tensor:
        """Single rows, without extremes: no hostile client can tell more than an honest one has told."""
        rows, cut = self.uploads[name], self.defence.hostile(len(self.ids))
        if not cut:
            return rows
        ordered = rows.sort(0).values
        return rows.clamp(ordered[cut], ordered[-1 - cut])
