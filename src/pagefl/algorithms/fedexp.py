"""FedExP. Jhunjhunwala, Wang, Joshi: FedExP: Speeding Up Federated Averaging via Extrapolation. ICLR 2023."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pagefl.core.algorithm import Algorithm, State

from .bounds import Positive


@dataclass(frozen=True)
class FedExp(Algorithm):
    """FedAvg whose server goes beyond the mean, the further the more the clients' updates differ.

    epsilon: added to the squared norm of the mean update; a larger one gives shorter steps
    """

    same_rows = (("upload.model", "personal"),)

    epsilon: Positive = 1e-3

    def aggregate(self, server: State, uploads: State, weights: Tensor, share: float) -> State:
        model = server["model"]
        update = weights @ uploads["model"] - model
        # One after the other: all differences at once would take as much memory as the uploads.
        lengths = torch.stack([(row - model).square().sum() for row in uploads["model"]])
        step = 0.5 * (weights @ lengths) / (update.square().sum() + self.epsilon)  # (1) of its page
        return {"model": model + step.clamp(min=1.0) * update}  # (2)
