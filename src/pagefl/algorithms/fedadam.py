"""FedAdam. Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive Federated Optimization.
ICLR 2021."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pagefl.core.algorithm import Algorithm, State
from pagefl.core.uploaded import Uploaded

from .bounds import Decay, Positive


@dataclass(frozen=True)
class FedAdam(Algorithm):
    """FedAvg whose server takes the mean update as a gradient, and steps along it by Adam.

    server_lr: learning rate of the server
    beta1: decay of the mean of the updates
    beta2: decay of the mean of their squares
    tau: added to the root of the squares; a larger one adapts less
    """

    same_rows = (("upload.model", "personal"),)

    server_lr: Positive = 0.1
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    tau: Positive = 1e-3

    def server_state(self, row: Tensor) -> State:
        return {"model": row, "mean": torch.zeros_like(row), "square": torch.full_like(row, self.tau**2)}

    def aggregate(self, server: State, uploads: Uploaded, weights: Tensor, share: float) -> State:
        update = uploads.sum("model", weights) - server["model"]
        mean = self.beta1 * server["mean"] + (1 - self.beta1) * update  # (1) of its page
        square = self.beta2 * server["square"] + (1 - self.beta2) * update.square()  # (2)
        step = self.server_lr * mean / (square.sqrt() + self.tau)  # (3)
        return {"model": server["model"] + step, "mean": mean, "square": square}
