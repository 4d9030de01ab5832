"""The four-layer CNN of FedAvg's paper and of PFLlib's benchmarks: two convolutions, two dense layers.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data. AISTATS 2017.
"""

import torch
from torch import Tensor, nn

from .pixels import Pixels

HALF = 0.5  # mean and deviation of each channel
SMALLEST = 16  # height and width


class Cnn(nn.Module):
    def __init__(self, classes: int, channels: int, side: int, hidden: int, normalised: bool) -> None:
        super().__init__()
        self.pixels = Pixels((HALF,) * channels, (HALF,) * channels) if normalised else nn.Identity()
        self.conv1, self.conv2 = nn.Conv2d(channels, 32, 5), nn.Conv2d(32, 64, 5)
        positions = (((side - 4) // 2 - 4) // 2) ** 2
        self.body = nn.Linear(64 * positions, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.max_pool2d(torch.relu(self.conv1(self.pixels(x))), 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        logits: Tensor = self.head(torch.relu(self.body(x.flatten(1))))
        return logits


def cnn(
    classes: int, channels: int = 3, side: int = 32, hidden: int = 512, normalised: bool = True
) -> nn.Module:
    """`side`: height and width of the images, at least 16. `normalised`: False if examples already are."""
    return Cnn(classes, channels, side, hidden, normalised)
