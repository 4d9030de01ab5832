"""The first layer of image models: bytes become normalised floats."""

import torch
from torch import Tensor, nn

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet; suitable for most photographs


class Pixels(nn.Module):
    """Converts bytes to normalised floats. Images stay bytes in memory until they are used."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...] = MEAN, std: tuple[float, ...] = STD) -> None:
        super().__init__()
        for name, channels in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(channels)[:, None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.uint8:
            x = x.to(self.mean.dtype) / 255
        return (x - self.mean) / self.std
