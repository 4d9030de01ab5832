"""Trust: what the server has learned about each client's uploads from the loss on its own data.

A score is the first-order fall of the game half's loss along a client's update, shortened to a bound. Scores
add up over rounds, so a client that harms the model counts for less and less, whatever its update looks like
in one round; one that helps it counts for more. Nobody has to be found out: clients whose data lead away from
what the others need lose weight in the same way.
"""

import numpy as np
import torch
from torch import Tensor

from pagefl.core.arrays import Floats, Integers
from pagefl.game.protocol import by_size
from pagefl.game.uploads import Uploads

KEPT = 0.95  # of the trust of the round before
STEP = 5.0  # by which trust changes at most in a round: weights, by its exponential
LONGEST = 3.0  # norm of an update, as a multiple of the round's median
DOUBT = -2.0  # a client with less trust counts for less in means, by the exponential of what is missing
FEW = 10  # with fewer clients in a round, trust only takes weight away: one favourite would be most of them
LEAST = -7.0  # a client with less trust is left out, as if it were absent


class Trust:
    """The logarithm of a factor of each client's weight; 0 for the median of a round."""

    def __init__(self, clients: int) -> None:
        self.tensor: Tensor = torch.zeros(clients, dtype=torch.float64)
        # The largest median of scores so far. Scores of a converged model are noise, and small beside it.
        self.usual: Tensor = torch.zeros(1, dtype=torch.float64)

    def learn(self, clients: Integers, uploads: Uploads) -> None:
        falls = uploads.falls * shortened(uploads.norms)
        off = falls - by_size(uploads) @ falls
        self.usual[:] = max(float(self.usual), float(np.median(np.abs(falls))))
        largest = max(float(np.abs(off).max()), float(self.usual))
        trust = KEPT * self._of(clients) + (STEP * off / largest if largest > 0 else 0.0)
        self.tensor[torch.from_numpy(clients)] = torch.from_numpy(trust - np.median(trust))

    def weights(self, clients: Integers, uploads: Uploads) -> Floats:
        trust = self._of(clients)
        factors = np.exp(trust - trust.max()) if len(clients) >= FEW else self._doubted(clients)
        weights = by_size(uploads) * shortened(uploads.norms) * factors
        weights[trust < LEAST] = 0.0
        return np.asarray(weights / weights.sum())

    def regard(self, clients: Integers, lengths: Floats) -> Floats:
        """How far each upload counts in a plain mean, which a server may keep for ever. Most clients count
        alike, so that it stays a mean. `lengths`: of the updates of the array."""
        return np.asarray(self._doubted(clients) * shortened(lengths))

    def _doubted(self, clients: Integers) -> Floats:
        return np.asarray(np.minimum(1.0, np.exp(self._of(clients) - DOUBT)))

    def _of(self, clients: Integers) -> Floats:
        return self.tensor[torch.from_numpy(clients)].numpy()


def shortened(lengths: Floats) -> Floats:
    """Factors by which updates would have to shrink to the bound."""
    return np.minimum(1.0, LONGEST * np.median(lengths) / np.maximum(lengths, 1e-300))
