"""Images as PFLlib's benchmark divides them: training and test files merged, then split for each client.

Zhang et al.: PFLlib: A Beginner-Friendly and Comprehensive Personalized Federated Learning Library and
Benchmark. JMLR 2025.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from pagefl.core import rng
from pagefl.core.errors import UserError
from pagefl.core.examples import Examples, Splits

from .federated import in_blocks
from .originals import Original
from .partition import Partition

TRAIN = 0.75  # share of a client's images
GAME = 0.1  # share of a client's other images, which the server gets for the game; PFLlib's server has none
FEWEST = 8  # images of a client: at least one each for training, test and the game
DRAWS = 100


def federation(original: Original, clients: int, delta: float, seed: int) -> Splits:
    """All images. The half of the server that evaluates is all clients' test images together.

    The global accuracy is then the shared model's on everybody's test images, as in PFLlib.
    """
    arrays = original.load()
    x, y = (torch.cat([arrays[f"train.{side}"], arrays[f"test.{side}"]]) for side in "xy")
    dealt = class_shares(y.numpy(), clients, delta, seed)
    parts: dict[str, list[torch.Tensor]] = {"train": [], "test": [], "game": []}
    for i in range(clients):
        own = torch.from_numpy(rng.stream(seed, "split", i).permutation(dealt.client(i)))
        train = round(TRAIN * len(own))
        game = max(1, round(GAME * (len(own) - train)))
        for role, part in zip(parts, own.split([train, len(own) - train - game, game]), strict=True):
            parts[role].append(part)
    test, known = (torch.cat(parts[role]) for role in ("test", "game"))
    return Splits(
        train=Examples.of([(x[own], y[own]) for own in parts["train"]]),
        test=Examples.of([(x[own], y[own]) for own in parts["test"]]),
        game=in_blocks(x[known], y[known]),
        server_test=in_blocks(x[test], y[test]),
    )


def class_shares(labels: NDArray[np.int64], clients: int, delta: float, seed: int) -> Partition:
    """Divide each class by shares from Dir(delta) over those clients that have less than their fair share.

    Sizes differ. It is drawn again until everybody has FEWEST.
    """
    stream = rng.stream(seed, "partition", "class_shares")
    for _ in range(DRAWS):
        owners = np.empty(len(labels), np.int64)
        sizes = np.zeros(clients, np.int64)
        for label in np.unique(labels):
            members = stream.permutation(np.flatnonzero(labels == label))
            shares = stream.dirichlet(np.full(clients, delta)) * (sizes < len(labels) / clients)
            if not shares.sum() > 0:  # a small delta may give all to clients that are left out, or underflow
                shares = (sizes == sizes.min()).astype(np.float64)
            ends = (shares.cumsum() / shares.sum() * len(members)).astype(np.int64)
            ends[-1] = len(members)
            counts = np.diff(ends, prepend=0)
            owners[members] = np.repeat(np.arange(clients), counts)
            sizes += counts
        if sizes.min() >= FEWEST:
            return Partition.of(owners, clients)
    raise UserError(
        f"task.clients = {clients}, task.delta = {delta}: {DRAWS} draws left a client fewer than {FEWEST} "
        "images; use fewer clients or a larger delta"
    )
