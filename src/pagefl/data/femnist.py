"""FEMNIST, handwritten characters by writer, from the files that LEAF's preprocessing writes.

Caldas et al.: LEAF: A Benchmark for Federated Settings. 2018. Cohen et al.: EMNIST. 2017.
"""

from pathlib import Path

import torch

from pagefl.core.errors import UserError

from . import leaf
from .federated import FederatedData
from .originals import Arrays, Original
from .pairs import Pair

CLASSES, SIDE = 62, leaf.SIDE
NAME = "femnist"


def verify(source: Path) -> str:
    splits = leaf.read(source, _bytes)
    writers = len(next(iter(splits.values())))
    images = ", ".join(
        f"{sum(len(y) for _, y in users.values())} in {part}" for part, users in splits.items()
    )
    return f"{writers} writers; images: {images}"


def read(source: Path) -> Arrays:
    """Of each split: x in bytes, y, and `starts`: writer i's images are x[starts[i]:starts[i + 1]]."""
    arrays: Arrays = {}
    splits = leaf.read(source, _bytes)
    for part, users in splits.items():
        pairs = [users[name] for name in sorted(users)]
        arrays[f"{part}.x"] = torch.cat([x for x, _ in pairs])
        arrays[f"{part}.y"] = torch.cat([y for _, y in pairs])
        arrays[f"{part}.starts"] = torch.tensor([0, *(len(y) for _, y in pairs)]).cumsum(0)
    return arrays


FEMNIST = Original(
    name=NAME,
    places=("femnist/data", "femnist"),
    home="https://github.com/TalwalkarLab/leaf (data/femnist, preprocess.sh -s niid --sf 1.0 -t sample)",
    verify=verify,
    read=read,
)


def federation(clients: int, fewest: int, seed: int) -> FederatedData:
    """`clients` writers with at least `fewest` images, drawn by the seed."""
    arrays = FEMNIST.load()
    splits: leaf.Splits = {}
    for part in sorted({name.partition(".")[0] for name in arrays}):
        x, y, starts = (arrays[f"{part}.{name}"] for name in ("x", "y", "starts"))
        bounds = zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
        splits[part] = {str(i): (x[start:end], y[start:end]) for i, (start, end) in enumerate(bounds)}
    return leaf.federation(FEMNIST.find(), splits, clients, fewest, leaf.TEST, seed)


def _bytes(who: str, pair: Pair) -> Pair:
    """LEAF divides bytes by 255. As bytes again, images take a quarter of the memory."""
    x, y = pair
    if x.shape[1:] != (1, SIDE, SIDE) or float(x.min()) < 0 or float(x.max()) > 1 or int(y.max()) >= CLASSES:
        raise UserError(
            f"{who} is not FEMNIST's: expected {SIDE}×{SIDE} numbers from 0 to 1, and labels from 0 to "
            f"{CLASSES - 1}"
        )
    return (255 * x).round().to(torch.uint8), y
