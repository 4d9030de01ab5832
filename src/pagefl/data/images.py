"""Turns labelled images into a federation. Training images go to the clients, test images to the server."""

from typing import Literal

import torch

from pagefl.core import rng
from pagefl.core.errors import UserError

from . import partition
from .augment import crop_and_flip
from .federated import FederatedData
from .originals import Original
from .partition import Partition

Split = Literal["labels", "iid", "shards"]
LOCAL_TEST = 0.3  # share of each client's images
SHARDS = 2  # per client


def federation(
    original: Original,
    clients: int,
    per_client: int,
    split: Split,
    delta: float,
    sigma: float,
    augment: bool,
    seed: int,
) -> FederatedData:
    """A federation of `clients` times `per_client` images, or of all images if there are fewer.

    The server gets the same share of the test images.
    """
    arrays = original.load()
    x, y = arrays["train.x"], arrays["train.y"]
    count = min(len(y), clients * per_client)
    if count < 4 * clients:
        raise UserError(
            f"task.clients = {clients}: {count} images leave fewer than 4 for each; use fewer clients"
        )
    chosen = _some(len(y), count, seed, "train")
    dealt = deal(y[chosen], clients, split, delta, sigma, seed)
    public = _some(len(arrays["test.y"]), max(2, round(len(arrays["test.y"]) * count / len(y))), seed, "test")
    own = [chosen[torch.from_numpy(dealt.client(i))] for i in range(clients)]
    return FederatedData.split(
        [(x[mine], y[mine]) for mine in own],
        test=LOCAL_TEST,
        server=(arrays["test.x"][public], arrays["test.y"][public]),
        seed=seed,
        augment=crop_and_flip if augment else None,
    )


def deal(
    labels: torch.Tensor, clients: int, split: Split, delta: float, sigma: float, seed: int
) -> Partition:
    sizes = partition.quantity_skew(len(labels), clients, sigma, seed) if sigma else None
    if split == "labels":
        return partition.label_skew(labels.numpy(), clients, delta, seed, sizes)
    if split == "iid":
        return partition.iid(len(labels), clients, seed, sizes)
    if sizes is not None:
        raise UserError(f"task.sigma = {sigma}: shards are of equal sizes; expected 0, or another split")
    return partition.shards(labels.numpy(), clients, SHARDS, seed)


def _some(of: int, count: int, seed: int, role: str) -> torch.Tensor:
    if count == of:
        return torch.arange(of)
    return torch.from_numpy(rng.stream(seed, "images", role).choice(of, count, replace=False)).sort().values
