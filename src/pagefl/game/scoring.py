"""The server's policy: one small network scores each upload by what can be seen of it, and scores make weights.

The server knows its own pay-off, the loss on its game half, as a function of the weights; so it needs no critic and no
exploring: how the loss changes with each weight is computed, and N uploads a round are N lessons for one network.
"""

import numpy as np
import torch
from torch import Tensor

from pagefl.agents import networks
from pagefl.agents.ddpg import Losses, adam
from pagefl.core import rng
from pagefl.core.federation import Uploads

from .players import Setup
from .rules import Floats, Integers, Ranges

FEATURES = 4  # accuracy on the game half, size, length of the move, agreement with the mean move
HIDDEN = (16, 16)


class Scoring:
    """Weights are by data size, times a factor for each upload: whoever is scored, the network stays the same."""

    sees = True

    def __init__(self, setup: Setup, ranges: Ranges, lr: float) -> None:
        self.setup, self.ranges, self.lr = setup, ranges, lr
        needed = networks.numbers_needed(FEATURES, 1, HIDDEN)
        draw = torch.from_numpy(2 * rng.uniforms(rng.keys(setup.seed, "scoring", 0, [0]), needed) - 1).float()
        scorer = networks.actor_parameters(draw, FEATURES, 1, HIDDEN)
        self.nets = {"scorer": scorer}
        for moment in ("mean", "square"):
            self.nets[f"scorer_{moment}"] = {name: torch.zeros_like(value) for name, value in scorer.items()}
        self.updates = torch.zeros(1, dtype=torch.long)
        self.frozen = False

    def follow(self, round: int, who: Integers, uploads: Uploads | None) -> tuple[Floats, Losses | None]:
        """Learn from these uploads, then weigh them."""
        assert uploads is not None
        sizes, features = self.setup.sizes[who].astype(np.float64), self._features(who, uploads)
        if not self.frozen:
            self._learn(torch.from_numpy(sizes), features, uploads)
        weights = self._weights(torch.from_numpy(sizes), features, self.nets["scorer"])
        return weights.numpy(), None

    def learn(self, reward: float) -> None:
        """Nothing: what a weight is worth was computed."""

    def _features(self, who: Integers, uploads: Uploads) -> Tensor:
        """By how many standard deviations each one differs from the others of its round."""
        norm, agreement = uploads.moves()
        raw = np.stack([uploads.accuracy, np.log(self.setup.sizes[who]), np.log(norm + 1e-12), agreement], axis=1)
        return torch.from_numpy((raw - raw.mean(0)) / (raw.std(0) + 1e-6)).float()

    def _weights(self, sizes: Tensor, features: Tensor, scorer: networks.Parameters) -> Tensor:
        scores = networks.act(scorer, features[None])[0, :, 0].double() / self.ranges.temperature
        return torch.softmax(sizes.log() + scores, dim=0)

    def _learn(self, sizes: Tensor, features: Tensor, uploads: Uploads) -> None:
        leaves = {name: value.detach().requires_grad_() for name, value in self.nets["scorer"].items()}
        weights = self._weights(sizes, features, leaves)
        slope = torch.from_numpy(uploads.slope(weights.detach().numpy()))
        self.updates += 1
        adam(self.nets, "scorer", leaves, weights @ slope, self.lr, self.updates)

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {
            "updates": self.updates,
            **{f"{net}.{name}": value for net, parts in self.nets.items() for name, value in parts.items()},
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        for name, value in self.tensors.items():
            value.copy_(tensors[name])

    def freeze(self) -> None:
        self.frozen = True
