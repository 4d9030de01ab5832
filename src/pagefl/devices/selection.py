"""Guided selection of participants, by what they have shown.

Lai, Zhu, Madhyastha, Chowdhury: Oort: Efficient Federated Learning via Guided Participant Selection. OSDI
2021. The numbers below are the paper's and its program's.
"""

import numpy as np
import torch

from pagefl.core import rng
from pagefl.core.algorithm import State
from pagefl.core.arrays import Floats, Integers
from pagefl.core.participants import Free

EXPLORE, FADING, LEAST = (
    0.9,
    0.98,
    0.2,
)  # share of new participants, its decay, its end
PENALTY = 2.0  # exponent of the penalty of a client that is slower than is preferred
UNCERTAIN = 0.1  # factor of the bonus of clients that were last seen long ago
CLIPPED, CUT = 95, 0.95  # percentile that clips, and share of the last value that still has a chance
WINDOW, PACE, FASTER = (
    20,
    30.0,
    10.0,
)  # rounds compared; the first preferred percentile, its step

LOWEST = 1e-9  # of a value, so that whoever is drawn by it has a chance


class Oort:
    def __init__(self, seed: int, clients: int) -> None:
        self.seed = seed
        self.use = np.full(clients, np.nan)  # NaN: nobody knows
        self.seconds = np.zeros(clients)
        self.seen = np.zeros(clients, np.int64)  # the last round
        self.pace = np.array([PACE])  # percentile of the seconds that are preferred
        self.sums = np.zeros(2 * WINDOW)  # of the uses of the last rounds' participants

    def draw(self, round: int, count: int, free: Free) -> Integers:
        chance = rng.stream(self.seed, "oort", round)
        able = np.flatnonzero(free(np.arange(len(self.use))))
        known, new = able[~np.isnan(self.use[able])], able[np.isnan(self.use[able])]
        exploring = min(len(new), int(max(LEAST, EXPLORE * FADING ** (round - 1)) * count + 0.5))
        exploiting = min(len(known), count - exploring)
        exploring = min(len(new), count - exploiting)
        found = chance.choice(new, exploring, replace=False)
        if exploiting:
            values = self._values(round, known)
            least = np.sort(values)[-exploiting] * CUT
            some, chances = known[values >= least], values[values >= least]
            found = np.concatenate(
                [found, chance.choice(some, exploiting, replace=False, p=chances / chances.sum())]
            )
        return np.sort(found)

    def learn(self, round: int, clients: Integers, seconds: Floats, losses: Floats, sizes: Floats) -> None:
        """Of those whose uploads counted."""
        told = ~np.isnan(losses)
        who = clients[told]
        self.use[who], self.seconds[who] = (sizes * losses)[told], seconds[told]
        self.seen[who] = round
        self.sums = np.append(self.sums[1:], self.use[who].sum())
        before, after = self.sums[:WINDOW].sum(), self.sums[WINDOW:].sum()
        if round % WINDOW == 0 and round > WINDOW and before > after:
            self.pace = np.minimum(self.pace + FASTER, 100.0)

    def _values(self, round: int, clients: Integers) -> Floats:
        use, seconds = self.use[clients], self.seconds[clients]
        clipped = np.minimum(use, np.percentile(use, CLIPPED))
        scaled = (clipped - clipped.min()) / max(float(np.ptp(clipped)), 1e-12)
        values = scaled + np.sqrt(UNCERTAIN * np.log(round) / self.seen[clients])
        preferred = np.percentile(self.seconds[~np.isnan(self.use)], self.pace[0])
        slow = np.minimum(1.0, preferred / np.maximum(seconds, 1e-12)) ** PENALTY
        return np.asarray(np.maximum(values * slow, LOWEST))

    @property
    def tensors(self) -> State:
        return {
            name: torch.from_numpy(getattr(self, name)) for name in ("use", "seconds", "seen", "pace", "sums")
        }

    def load(self, tensors: State) -> None:
        for name in self.tensors:
            setattr(self, name, tensors[name].numpy().copy())
