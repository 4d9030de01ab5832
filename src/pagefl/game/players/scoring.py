"""Scoring: one small network scores each upload by what can be seen of it, and scores make weights.

The server knows its own loss, on its game half, as a function of the weights. So it needs no critic and no
exploration: how the loss changes with each weight is computed, and N uploads of a round are N training
examples of one network.
"""

import numpy as np
import torch
from torch import Tensor

from pagefl.agents import networks
from pagefl.agents.ddpg import Losses, adam
from pagefl.core import rng
from pagefl.core.algorithm import State
from pagefl.core.arrays import Floats, Integers
from pagefl.game.protocol import ServerPolicy, Setup
from pagefl.game.uploads import Uploads

FEATURES = 4  # accuracy on the game half, size, length of the move, agreement with the mean move
HIDDEN = (16, 16)


class Scoring(ServerPolicy):
    """Weights are by data size, times a factor for each upload.

    The network does not depend on who is scored.
    """

    def __init__(self, setup: Setup, temperature: float, lr: float) -> None:
        super().__init__(setup)
        self.temperature, self.lr = temperature, lr
        needed = networks.numbers_needed(FEATURES, 1, HIDDEN)
        draw = torch.from_numpy(2 * rng.uniforms(rng.keys(setup.seed, "scoring", 0, [0]), needed) - 1).float()
        scorer = networks.actor_parameters(draw, FEATURES, 1, HIDDEN)
        self.nets = {"scorer": scorer}
        for moment in ("mean", "square"):
            self.nets[f"scorer_{moment}"] = {name: torch.zeros_like(value) for name, value in scorer.items()}
        self.updates = torch.zeros(1, dtype=torch.long)

    def observe(self, round: int, clients: Integers, uploads: Uploads) -> Losses | None:
        """One step down the slope of the server's loss."""
        if not self.frozen:
            sizes, features = torch.from_numpy(uploads.sizes), self._features(uploads)
            leaves = {name: value.detach().requires_grad_() for name, value in self.nets["scorer"].items()}
            weights = self._weights(sizes, features, leaves)
            slope = torch.from_numpy(uploads.slope(weights.detach().numpy()))
            self.updates += 1
            adam(self.nets, "scorer", leaves, weights @ slope, self.lr, self.updates)
        return None

    def act(self, round: int, clients: Integers, uploads: Uploads) -> Floats:
        weights = self._weights(torch.from_numpy(uploads.sizes), self._features(uploads), self.nets["scorer"])
        return np.asarray(weights.numpy())

    def _features(self, uploads: Uploads) -> Tensor:
        """By how many standard deviations each upload differs from the others of its round."""
        norm, agreement = uploads.moves
        raw = np.stack([uploads.accuracy, np.log(uploads.sizes), np.log(norm + 1e-12), agreement], axis=1)
        return torch.from_numpy((raw - raw.mean(0)) / (raw.std(0) + 1e-6)).float()

    def _weights(self, sizes: Tensor, features: Tensor, scorer: networks.Parameters) -> Tensor:
        scores = networks.act(scorer, features[None])[0, :, 0].double() / self.temperature
        return torch.softmax(sizes.log() + scores, dim=0)

    @property
    def tensors(self) -> State:
        nets = {f"{net}.{name}": value for net, parts in self.nets.items() for name, value in parts.items()}
        return {"updates": self.updates, **nets}
