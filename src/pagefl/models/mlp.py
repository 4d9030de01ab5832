"""A network with one hidden layer: the smallest model with a body and a head."""

import torch
from torch import Tensor, nn


class Mlp(nn.Module):
    def __init__(self, features: int, classes: int, hidden: int = 64) -> None:
        super().__init__()
        self.body = nn.Linear(features, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu(self.body(x)))
        return logits
