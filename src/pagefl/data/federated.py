"""A federation's data by role, checked once when it is created."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from pagefl.core import rng
from pagefl.core.errors import UserError
from pagefl.core.examples import Augment, Examples, Splits

from .pairs import Pair, agree, read

# (x, y) as arrays, tensors, data frames or lists, or a map-style Dataset whose items are (x, y)
Given = object


class FederatedData(Splits):
    """The data of a federation: each client's training and test examples, and the server's examples.

    A client's examples are (x, y), as NumPy arrays, torch tensors, data frames or lists, or a map-style
    Dataset whose items are (x, y). They are read once and copied, so later changes to them have no effect.

    The server's examples are split into two halves. One half is for the game (states and rewards of a server
    agent). The other half is only used to evaluate: no algorithm ever sees it. `game`, if given, is for the
    game, and then all of the server's examples are used to evaluate. `holdout`, if given, replaces the
    training data in states and rewards. `augment` changes examples each time they are trained on (see
    `pagefl.data.augment`). `in_order`: a client's neighbouring examples overlap, as windows of a text do.
    What is held out of its training data is then the end, not a draw.
    """

    def __init__(
        self,
        train: Iterable[Given],
        test: Iterable[Given],
        server: Given,
        holdout: Iterable[Given] | None = None,
        seed: int = 0,
        augment: Augment | None = None,
        in_order: bool = False,
        game: Given | None = None,
    ) -> None:
        if augment is not None and not callable(augment):
            raise UserError(
                f"augment = {augment!r}: must be a function, such as pagefl.data.augment.crop_and_flip"
            )
        seed = _whole(seed)
        given = {"train": _listed("train", train), "test": _listed("test", test)}
        given |= {} if holdout is None else {"holdout": _listed("holdout", holdout)}
        for role, clients in given.items():
            if len(clients) != len(given["train"]):
                raise UserError(
                    f"{role} has {len(clients)} clients but train has {len(given['train'])}; they must be "
                    "as many"
                )
        roles = {
            role: [read(f"client {i} ({role})", own) for i, own in enumerate(clients)]
            for role, clients in given.items()
        }
        x, y = read("server", server)
        agree(
            [
                (f"client {i} ({role})", own)
                for role, clients in roles.items()
                for i, (own, _) in enumerate(clients)
            ]
        )
        agree([("client 0 (train)", roles["train"][0][0]), ("server", x)])
        played, judged = _halves((x, y), seed) if game is None else (read("game", game), (x, y))
        agree([("server", x), ("game", played[0])])
        super().__init__(
            train=replace(Examples.of(roles["train"], augment), in_order=in_order),
            test=Examples.of(roles["test"]),
            game=in_blocks(*played),
            server_test=in_blocks(*judged),
            holdout=Examples.of(roles["holdout"]) if "holdout" in roles else None,
        )

    @classmethod
    def split(
        cls,
        clients: Iterable[Given],
        *,
        test: float = 0.24,
        server: float | Given = 0.2,
        holdout: float = 0.0,
        seed: int = 0,
        augment: Augment | None = None,
    ) -> "FederatedData":
        """Split each client's data into shares for its test, the server and the hold-out.

        The rest is for training. If `server` is an (x, y) or a Dataset, the server takes no examples from the
        clients.
        """
        shares: dict[str, Any] = {
            "test": test,
            **({"server": server} if isinstance(server, Real) else {}),
            "holdout": holdout,
        }
        _check(shares)
        seed = _whole(seed)
        pairs = [read(f"client {i}", given) for i, given in enumerate(_listed("clients", clients))]
        agree([(f"client {i}", x) for i, (x, _) in enumerate(pairs)])
        parts: dict[str, list[Pair]] = {role: [] for role in ("test", "server", "holdout", "train")}
        for i, pair in enumerate(pairs):
            for role, own in split_client(i, pair, shares, seed).items():
                parts[role].append(own)
        if "server" in shares:
            server = tuple(torch.cat(side) for side in zip(*parts["server"], strict=True))
        return cls(
            parts["train"], parts["test"], server, parts["holdout"] if holdout else None, seed, augment
        )


def split_client(number: int, pair: Pair, shares: Mapping[str, float], seed: int) -> dict[str, Pair]:
    """One client's examples by role: these shares, and the rest for training."""
    y = pair[1]
    counts = {role: round(len(y) * share) for role, share in shares.items()}
    left = len(y) - sum(counts.values())
    if left < 1 or any(counts[role] < 1 for role, share in shares.items() if share):
        told = ", ".join(f"{role}={share}" for role, share in shares.items())
        raise UserError(
            f"client {number} has {len(y)} examples: the shares {told} must each get at least one and "
            "leave one for training"
        )
    order = rng.stream(seed, "split", number).permutation(len(y))
    x, y = (
        torch.from_numpy(side.numpy()[order]) for side in pair
    )  # NumPy gathers few rows faster than torch
    found, start = {}, 0
    for role, count in {**counts, "train": left}.items():
        found[role] = x[start : start + count], y[start : start + count]
        start += count
    return found


def server_halves(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Places of the server's examples that the game uses, and of those that only evaluate."""
    order = torch.from_numpy(rng.stream(seed, "server halves").permutation(count))
    return order[: count // 2].sort().values, order[count // 2 :].sort().values


def _listed(name: str, clients: Iterable[Given]) -> list[Given]:
    if isinstance(clients, str | Mapping | Tensor | np.ndarray | Dataset) or not isinstance(
        clients, Iterable
    ):
        raise UserError(
            f"{name} is a {type(clients).__name__}; expected a list with one (x, y) or Dataset for each "
            "client"
        )
    found = list(clients)
    if not found:
        raise UserError(f"{name} has 0 clients; expected at least one (x, y) or Dataset")
    return found


def _whole(seed: int) -> int:
    if not isinstance(seed, Integral):
        raise UserError(f"seed = {seed!r}: must be a whole number")
    return int(seed)


def _check(shares: dict[str, Any]) -> None:
    for name, share in shares.items():
        none = name == "holdout" and share == 0
        if not none and (isinstance(share, bool) or not isinstance(share, Real) or not 0 < float(share) < 1):
            bounds = "at least 0" if name == "holdout" else "greater than 0"
            raise UserError(
                f"{name} = {share!r}: must be a share of each client's examples, {bounds} and less than 1"
            )
    if (total := sum(shares.values())) >= 1:
        raise UserError(
            f"{' + '.join(shares)} = {total:g}: must be less than 1, which leaves the rest for training"
        )


def _halves(server: Pair, seed: int) -> tuple[Pair, Pair]:
    """The server's examples for the game, and those that only evaluate."""
    x, y = server
    if len(y) < 2:
        raise UserError(
            "server: there is 1 example; expected at least two, one for the game and one to judge"
        )
    game, judge = server_halves(len(y), seed)
    return (x[game], y[game]), (x[judge], y[judge])


def in_blocks(x: Tensor, y: Tensor, size: int = 1000) -> Examples:
    """Split the server's examples into blocks, so that workers can evaluate them in parallel."""
    return Examples(x, y, torch.tensor([*range(0, len(y), size), len(y)]))
