"""ResNet-18 with group normalisation: batch statistics differ too much between clients.

He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition. CVPR 2016. GroupNorm in federated learning:
Hsieh et al., The Non-IID Data Quagmire of Decentralized Machine Learning. ICML 2020.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from .pixels import Pixels

Stem = Literal["imagenet", "small"]
GROUPS = 2


class Block(nn.Module):
    """A residual block: x + conv(relu(conv(x))), with a norm after each convolution.

    If the shapes differ, the shortcut is a 1x1 convolution.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = _conv(inputs, outputs, 3, stride), nn.GroupNorm(GROUPS, outputs)
        self.conv2, self.norm2 = _conv(outputs, outputs, 3), nn.GroupNorm(GROUPS, outputs)
        self.shortcut = nn.Sequential()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(_conv(inputs, outputs, 1, stride), nn.GroupNorm(GROUPS, outputs))

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, classes: int, stem: Stem, width: int) -> None:
        super().__init__()
        self.pixels = Pixels()
        if stem == "imagenet":
            pooling = nn.MaxPool2d(3, stride=2, padding=1)
            self.stem = nn.Sequential(_conv(3, width, 7, 2), nn.GroupNorm(GROUPS, width), nn.ReLU(), pooling)
        else:
            self.stem = nn.Sequential(_conv(3, width, 3), nn.GroupNorm(GROUPS, width), nn.ReLU())
        stages = []
        inputs = width
        for stage in range(4):
            outputs = width << stage
            stages += [
                Block(inputs, outputs, stride=1 if stage == 0 else 2),
                Block(outputs, outputs, stride=1),
            ]
            inputs = outputs
        self.body = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.body(self.stem(self.pixels(x)))
        logits: Tensor = self.head(features.mean((2, 3)))
        return logits


def resnet18(classes: int, stem: Stem = "imagenet", width: int = 64) -> nn.Module:
    """`stem`: imagenet is 7x7 with stride 2 and pooling, small is 3x3. `width`: channels after the stem."""
    return ResNet(classes, stem, width)


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without a bias: the norm that follows would cancel it."""
    conv = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv
