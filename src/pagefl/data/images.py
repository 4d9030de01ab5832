"""Turns labelled images into a federation. Training images go to the clients, test images to the server."""

from typing import Literal

import torch

from pagefl.core import rng
from pagefl.core.errors import UserError

from . import partition
from .augment import crop_and_flip
from .federated import FederatedData
from .originals import Arrays, Original
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
    pool = some_for_clients(arrays, clients, per_client, seed)
    share = len(pool["train.y"]) / len(arrays["train.y"])
    public = _some(len(arrays["test.y"]), max(2, round(len(arrays["test.y"]) * share)), seed, "test")
    pool |= {name: arrays[name][public] for name in ("test.x", "test.y")}
    return dealt(pool, clients, split, delta, sigma, augment, seed)


def some_for_clients(arrays: Arrays, clients: int, per_client: int, seed: int) -> Arrays:
    """The same arrays, with `clients` times `per_client` of the training images."""
    count = min(len(arrays["train.y"]), clients * per_client)
    if count < 4 * clients:
        raise UserError(
            f"task.clients = {clients}: {count} images leave fewer than 4 for each; use fewer clients"
        )
    chosen = _some(len(arrays["train.y"]), count, seed, "train")
    return arrays | {name: arrays[name][chosen] for name in ("train.x", "train.y")}


def dealt(
    pool: Arrays, clients: int, split: Split, delta: float, sigma: float, augment: bool, seed: int
) -> FederatedData:
    """Deal all training images to the clients. The server gets the test images."""
    x, y = pool["train.x"], pool["train.y"]
    owned = deal(y, clients, split, delta, sigma, seed)
    own = [torch.from_numpy(owned.client(i)) for i in range(clients)]
    return FederatedData.split(
        [(x[mine], y[mine]) for mine in own],
        test=LOCAL_TEST,
        server=(pool["test.x"], pool["test.y"]),
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
