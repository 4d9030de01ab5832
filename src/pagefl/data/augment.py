"""Image augmentation for a whole stack of batches at once."""

import torch
from torch import Tensor
from torch.nn.functional import pad

PADDING = 4


def crop_and_flip(x: Tensor, chances: Tensor) -> Tensor:
    """Pad images with black pixels, crop them at random, and mirror half of them.

    `x`: [n, batch, channels, height, width]. `chances`: uniform numbers in [0, 1), four per image.
    """
    height, width = x.shape[-2:]
    images = pad(x.flatten(0, 1), [PADDING] * 4)
    down, right, mirrored, _ = chances.flatten(0, 1).unbind(-1)
    rows = _shifts(down)[:, None] + torch.arange(height, device=x.device)
    columns = torch.arange(width, device=x.device).expand(len(images), -1)
    columns = _shifts(right)[:, None] + torch.where(mirrored[:, None] < 0.5, columns, width - 1 - columns)
    who = torch.arange(len(images), device=x.device)[:, None, None]
    cut = images.permute(0, 2, 3, 1)[who, rows[:, :, None], columns[:, None]]
    return cut.permute(0, 3, 1, 2).contiguous().view(x.shape)


def _shifts(chance: Tensor) -> Tensor:
    return (chance * (2 * PADDING + 1)).long()
