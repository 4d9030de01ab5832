"""FedAvgM. Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification. 2019, arXiv:1909.06335."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pagefl.core.algorithm import Algorithm, State
from pagefl.core.uploaded import Uploaded

from .bounds import Decay, Positive


@dataclass(frozen=True)
class FedAvgM(Algorithm):
    """FedAvg whose server takes the mean update as a gradient, and steps along it with momentum.

    server_lr: learning rate of the server
    server_momentum: momentum of the server; 0 with a learning rate of 1 is FedAvg
    """

    same_rows = (("upload.model", "personal"),)

    server_lr: Positive = 1.0
    server_momentum: Decay = 0.9

    def server_state(self, row: Tensor) -> State:
        return {"model": row, "velocity": torch.zeros_like(row)}

    def aggregate(self, server: State, uploads: Uploaded, weights: Tensor, share: float) -> State:
        update = uploads.sum("model", weights) - server["model"]
        velocity = self.server_momentum * server["velocity"] + update  # (1) of its page
        return {"model": server["model"] + self.server_lr * velocity, "velocity": velocity}  # (2)
