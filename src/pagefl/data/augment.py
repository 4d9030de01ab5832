"""Image augmentation for a whole stack of batches at once."""

import numpy as np
import torch
from numba import njit
from torch import Tensor

PADDING = 4


def crop_and_flip(x: Tensor, chances: Tensor) -> Tensor:
    """Pad images with black pixels, crop them at random, and mirror half of them.

    `x`: [n, batch, channels, height, width]. `chances`: uniform numbers in [0, 1), four per image.
    """
    down, right, mirrored, _ = chances.cpu().flatten(0, 1).unbind(-1)
    images = x.cpu().contiguous().flatten(0, 1).numpy()
    cut = np.zeros_like(images)
    _cut(images, _shifts(down).numpy(), _shifts(right).numpy(), (mirrored >= 0.5).numpy(), cut)
    return torch.from_numpy(cut).view(x.shape).to(x.device)


def _shifts(chance: Tensor) -> Tensor:
    """From -PADDING to PADDING."""
    return (chance * (2 * PADDING + 1)).long() - PADDING


@njit(cache=True)
def _cut(images, down, right, mirrored, cut):  # type: ignore[no-untyped-def]  # numba infers
    """`cut`: zeros, of which those that the shifted image covers are overwritten."""
    channels, height, width = images.shape[1:]
    for i in range(len(images)):
        for c in range(channels):
            for h in range(max(0, -down[i]), min(height, height - down[i])):
                line, to = images[i, c, h + down[i]], cut[i, c, h]
                if mirrored[i]:
                    for w in range(width):
                        place = right[i] + width - 1 - w
                        if 0 <= place < width:
                            to[w] = line[place]
                else:
                    for w in range(max(0, -right[i]), min(width, width - right[i])):
                        to[w] = line[w + right[i]]
