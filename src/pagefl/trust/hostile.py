"""Hostile clients: who they are, and what they upload in place of what they have trained."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pagefl.core import rng, sums
from pagefl.core.algorithm import State
from pagefl.core.arrays import Integers
from pagefl.core.storage import Allocate
from pagefl.core.uploaded import Source

from .attacks import ON_UPLOADS
from .attacks.scene import Scene
from .defence import Defence
from .updates import Updates


def chosen(clients: int, share: float, seed: int) -> Integers:
    """The hostile clients of a federation, ascending."""
    count = int(share * clients + 0.5)
    return np.sort(rng.stream(seed, "hostile").choice(clients, count, replace=False))


@dataclass(frozen=True)
class Attack:
    name: str
    factor: float
    strength: float
    seed: int
    defence: Defence  # that the server uses, as the attackers know


class Attacked:
    """A `Source` of uploads, some of which an attack has replaced. What clients keep stays as it is."""

    def __init__(
        self, source: Source, uploads: State, hostile: Integers, attack: Attack, allocate: Allocate
    ) -> None:
        """`uploads`: a row for every client; only its shapes matter. `allocate`: zeros that workers share."""
        self.source, self.hostile, self.attack = source, hostile, attack
        self.made = {
            name: allocate([len(hostile), *rows.shape[1:]], dtype=rows.dtype)
            for name, rows in uploads.items()
        }

    def replace(self, round: int, clients: Integers, origin: State) -> None:
        """Make the hostile uploads of a round. `clients`: whose uploads have arrived."""
        bad = np.isin(clients, self.hostile)
        if not bad.any() or bad.all() or not self.made:  # attackers among themselves have nobody to imitate
            self._write(clients[bad], {name: self.source.rows(name, clients[bad]) for name in self.made})
            return
        updates = self._flat(clients, origin)
        own, honest, attack = updates[torch.from_numpy(bad)], updates[torch.from_numpy(~bad)], self.attack
        numbers = np.concatenate([clients[~bad], clients[bad]])

        def aggregated(update: Tensor) -> Tensor:
            rows = torch.cat([honest, update.expand_as(own)])
            return attack.defence.mean(Updates({"": rows}, {}), numbers, round).to(honest)

        scene = Scene(
            own, honest, clients[bad], round, attack.seed, attack.factor, attack.strength, aggregated
        )
        self._write(clients[bad], self._named(ON_UPLOADS[attack.name](scene), origin))

    def _flat(self, clients: Integers, origin: State) -> Tensor:
        parts = []
        for name in self.made:
            rows = self.source.rows(name, clients)
            parts.append((rows - origin[name] if name in origin else rows).flatten(1))
        return torch.cat(parts, dim=1)

    def _named(self, updates: Tensor, origin: State) -> State:
        found, start = {}, 0
        for name, made in self.made.items():
            width = made[0].numel()
            rows = updates[:, start : start + width].view(-1, *made.shape[1:])
            found[name] = rows + origin[name] if name in origin else rows
            start += width
        return found

    def _write(self, clients: Integers, rows: State) -> None:
        places = torch.from_numpy(np.searchsorted(self.hostile, clients))
        for name, made in self.made.items():
            made[places] = rows[name].to(made)

    @property
    def names(self) -> list[str]:
        return self.source.names

    @property
    def size(self) -> int:
        return self.source.size

    @property
    def cuts(self) -> Integers:
        return self.source.cuts

    def rows(self, name: str, ids: Integers) -> Tensor:
        rows, bad = self.source.rows(name, ids), np.isin(ids, self.hostile)
        if not bad.any():
            return rows
        rows = rows.clone()
        rows[torch.from_numpy(bad)] = self.made[name][
            torch.from_numpy(np.searchsorted(self.hostile, ids[bad]))
        ]
        return rows

    def sum(self, name: str, ids: Integers, weights: Tensor) -> Tensor:
        return sums.weighted(self.rows(name, ids), np.arange(len(ids)), ids, weights)
