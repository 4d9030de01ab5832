"""Fixed features of images, fitted without labels: whitened patches as filters, rectified, pooled, projected.

Coates, Lee, Ng: An Analysis of Single-Layer Networks in Unsupervised Feature Learning. AISTATS 2011. Filters
are patches drawn at random instead of k-means centres (Coates, Ng: The Importance of Encoding Versus Training
with Sparse Coding and Vector Quantization. ICML 2011): rounding cannot change which ones they are.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pagefl.core import rng
from pagefl.core.errors import UserError

SIDE = 32  # height and width of the images that patches are cut from; larger images are averaged down
PATCH, STRIDE = 6, 2
PLACES = (SIDE - PATCH) // STRIDE + 1  # of a patch along a side
SAMPLED = 200_000  # patches from which the whitening and the filters come
FILTERS = 400
CONTRAST = 0.01  # added to a patch's variance; pixels are from 0 to 1
WHITENING = 0.02  # added to the eigenvalues of the patches' covariance
THRESHOLD = 0.25  # of the rectifiers
POOLED = FILTERS * 2 * 4  # two signs, four quarters of the image
NORM = 4.0  # mean norm of the features
BLOCK = 64  # images per pass: what a pass writes stays in the cache


def recipe() -> str:
    """All constants that features depend on."""
    return repr((SIDE, PATCH, STRIDE, SAMPLED, FILTERS, CONTRAST, WHITENING, THRESHOLD, NORM))


@dataclass(frozen=True)
class PatchFeatures:
    """A map from images (bytes [n, 3, side, side]) to features (float32 [n, features])."""

    filters: Tensor  # [FILTERS, 3 * PATCH * PATCH]
    shift: Tensor  # [FILTERS, 1]
    centre: Tensor  # [POOLED]
    projection: Tensor  # [POOLED, features]

    def __call__(self, images: Tensor) -> Tensor:
        with one_thread():
            blocks = (pooled(block, self.filters, self.shift) for block in images.split(BLOCK))
            return torch.cat([(block - self.centre) @ self.projection for block in blocks])


def fit(images: Tensor, features: int, seed: int) -> PatchFeatures:
    """Fit everything on these images alone, in float64 where rounding would matter."""
    if not features < len(images):
        raise UserError(
            f"task.features = {features}: the game half has {len(images)} images; expected fewer features "
            "than images"
        )
    with one_thread():
        filters, shift = _fit_filters(images, rng.stream(seed, "patches", "sampled"))
        found = torch.cat([pooled(block, filters, shift) for block in images.split(BLOCK)]).double()
        centre, spread = found.mean(0), found.std(0) + 1e-3
        scaled = (found - centre) / spread
        values, vectors = torch.linalg.eigh(scaled.T @ scaled / len(scaled))
        values, vectors = values.flip(0)[:features], vectors.flip(1)[:, :features]
        vectors = vectors * _largest(vectors).sign()  # an eigenvector's sign is arbitrary
        # Half-way between principal components as they are and whitened ones, which would raise noise.
        projection = vectors / spread[:, None] * (values + 1e-3) ** -0.25
        projection *= NORM / ((found - centre) @ projection).norm(dim=1).mean()
    return PatchFeatures(filters, shift, centre.float(), projection.float())


def pooled(images: Tensor, filters: Tensor, shift: Tensor) -> Tensor:
    """How strongly each filter answers in each quarter of the image, for both signs: [n, POOLED]."""
    patches = functional.unfold(_pixels(images), PATCH, stride=STRIDE)  # [n, 3 * PATCH * PATCH, places]
    contrast = (patches.var(1, keepdim=True) + CONTRAST).sqrt()
    answers = (filters @ patches / contrast - shift).view(len(images), FILTERS, PLACES, PLACES)
    signs = [functional.relu(sign * answers - THRESHOLD) for sign in (1, -1)]
    return torch.cat([functional.avg_pool2d(side, PLACES // 2).flatten(1) for side in signs], 1)


def _fit_filters(images: Tensor, stream: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Filters and shifts such that filters @ patch / contrast - shift is a whitened patch times a filter."""
    # a view [n, 3, places, places, PATCH, PATCH]
    every = _pixels(images).unfold(2, PATCH, STRIDE).unfold(3, PATCH, STRIDE)
    count = len(images) * PLACES**2
    drawn = torch.from_numpy(stream.choice(count, min(count, SAMPLED), replace=False))
    image, row, column = drawn // PLACES**2, drawn // PLACES % PLACES, drawn % PLACES
    patches = every[image, :, row, column].flatten(1).double()
    patches = patches - patches.mean(1, keepdim=True)
    patches = patches / (patches.var(1, keepdim=True) + CONTRAST).sqrt()
    mean = patches.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov((patches - mean).T))
    whitening = vectors @ torch.diag((values.clamp(min=0) + WHITENING).rsqrt()) @ vectors.T
    chosen = (patches[:FILTERS] - mean) @ whitening  # in the order drawn, which is random
    filters = chosen / chosen.norm(dim=1, keepdim=True).clamp(min=1e-12) @ whitening
    shift = filters @ mean
    filters = filters - filters.mean(1, keepdim=True)  # takes the mean off a patch
    return filters.float(), shift[:, None].float()


def _pixels(images: Tensor) -> Tensor:
    """From 0 to 1, SIDE by SIDE."""
    pixels = images.float() / 255
    return functional.avg_pool2d(pixels, images.shape[-1] // SIDE) if images.shape[-1] > SIDE else pixels


def _largest(vectors: Tensor) -> Tensor:
    """The entry of each column that is largest in size."""
    return vectors.gather(0, vectors.abs().argmax(0, keepdim=True))


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums then do not depend on the number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
