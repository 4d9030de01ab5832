"""Reads a partition that FLGo has written: data.json, with each client's places in a data set.

Wang et al.: FLGo: A Fully Customizable Federated Learning Platform. 2023.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import torch

from pagefl.core.errors import UserError, shown

from . import bounded
from .cifar100 import CIFAR100
from .federated import FederatedData
from .images import LOCAL_TEST
from .originals import Original

LARGEST = 200_000_000  # bytes of data.json


def from_json(
    path: str | Path,
    original: Original = CIFAR100,
    *,
    clients: int = 0,
    test: float = LOCAL_TEST,
    seed: int = 0,
) -> FederatedData:
    """The federation of a data.json: clients in its order, with the images that it gives them.

    `original`: the data set that it counts in; its files are read from PAGEFL_DATA. `clients`: only the first
    ones; 0 for all. `test`: share of each client's images for its own test. The server has the test images of
    the data set, in halves.
    """
    path = Path(path)
    path = path / "data.json" if path.is_dir() else path
    places = _places(path, bounded.json_file(path, LARGEST))
    if not 0 <= clients <= len(places):
        raise UserError(
            f"clients = {clients}: {path} has {len(places)} of them; expected at most so many, or 0 for all"
        )
    arrays = original.load()
    x, y = arrays["train.x"], arrays["train.y"]
    own = [torch.tensor(mine) for mine in [*places.values()][: clients or None]]
    for name, mine in zip(places, own, strict=False):
        if int(mine.max()) >= len(y):
            raise UserError(
                f"{path}: {shown(name)} has place {int(mine.max())}, and {original.name} has {len(y)} "
                "training images; is it a partition of another data set?"
            )
    return FederatedData.split(
        [(x[mine], y[mine]) for mine in own],
        test=test,
        server=(arrays["test.x"], arrays["test.y"]),
        seed=seed,
    )


def _places(path: Path, found: Any) -> dict[str, list[int]]:
    """Each client's places, checked: none is negative, and none is given twice."""
    names = found.get("client_names") if isinstance(found, dict) else None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise UserError(f"{path} has no list client_names; expected a data.json as FLGo writes it")
    if "local_perturbation" in found:
        raise UserError(
            f"{path} has a local_perturbation, which is not applied here; use a partition without one"
        )
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise UserError(f"{path}: client {shown(twice)} is named more than once; expected each of them once")
    places: dict[str, list[int]] = {}
    owner: dict[int, str] = {}
    for name in names:
        mine = found[name].get("data") if isinstance(found.get(name), dict) else None
        if (
            not isinstance(mine, list)
            or not mine
            or not all(type(place) is int and 0 <= place < 2**62 for place in mine)
        ):
            raise UserError(
                f"{path}: {shown(name)} has no list data of places, which are whole numbers from 0"
            )
        for place in mine:
            if place in owner:
                raise UserError(
                    f"{path}: {shown(name)} has place {place}, which {shown(owner[place])} has already; "
                    "expected each image once"
                )
            owner[place] = name
        places[name] = mine
    return places
