"""A federation's data by role, checked once at the door."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pagefl.core import rng
from pagefl.core.errors import UserError
from pagefl.core.examples import Augment, Examples, Splits

Pair = tuple[Tensor, Tensor]


class FederatedData(Splits):
    """Each client's (x, y) for training and for its own test, and the server's public (x, y).

    One half of the server's examples is for the game (a server agent's states and rewards), the other only judges:
    no algorithm ever sees it. `holdout`, where given, takes the place of the training data in states and rewards.
    `augment` changes examples each time they are trained on (see `pagefl.data.augment`).
    """

    def __init__(
        self,
        train: Sequence[Pair],
        test: Sequence[Pair],
        server: Pair,
        holdout: Sequence[Pair] | None = None,
        seed: int = 0,
        augment: Augment | None = None,
    ) -> None:
        if not train:
            raise UserError("train has 0 clients; it needs at least one (x, y)")
        for role, pairs in {"test": test, "holdout": holdout}.items():
            if pairs is not None and len(pairs) != len(train):
                raise UserError(f"{role} has {len(pairs)} clients but train has {len(train)}; valid is one (x, y) for each")
        shape = torch.as_tensor(train[0][0]).shape[1:]
        x, y = _checked("server", 0, server, shape)
        if len(y) < 2:
            raise UserError("server has 1 example; it needs at least two, one for the game and one to judge")
        order = torch.from_numpy(rng.stream(seed, "server halves").permutation(len(y)))
        game, judge = order[: len(y) // 2].sort().values, order[len(y) // 2 :].sort().values

        def examples(role: str, pairs: Sequence[Pair], augment: Augment | None = None) -> Examples:
            return Examples.of([_checked(role, i, pair, shape) for i, pair in enumerate(pairs)], augment)

        super().__init__(
            train=examples("train", train, augment),
            test=examples("test", test),
            game=_in_blocks(x[game], y[game]),
            server_test=_in_blocks(x[judge], y[judge]),
            holdout=None if holdout is None else examples("holdout", holdout),
        )

    @classmethod
    def split(
        cls,
        clients: Sequence[Pair],
        *,
        test: float = 0.24,
        server: float | Pair = 0.2,
        holdout: float = 0.0,
        seed: int = 0,
        augment: Augment | None = None,
    ) -> "FederatedData":
        """From each client's data, shares for its own test, the server and the hold-out; the rest is for training.

        A server with an (x, y) of its own takes nothing from the clients.
        """
        parts: dict[str, list[Pair]] = {"train": [], "test": [], "server": [], "holdout": []}
        taken = 0.0 if isinstance(server, tuple) else server
        for i, (x, y) in enumerate(clients):
            counts = [round(len(y) * share) for share in (test, taken, holdout)]
            if counts[0] < 1 or (counts[1] < 1 and not isinstance(server, tuple)) or len(y) - sum(counts) < 1:
                raise UserError(
                    f"client {i} has {len(y)} examples: shares test={test}, server={taken}, holdout={holdout} must each "
                    "get at least one and leave one for training"
                )
            order = torch.from_numpy(rng.stream(seed, "split", i).permutation(len(y)))
            for role, part in zip(
                ["test", "server", "holdout", "train"], order.split([*counts, len(y) - sum(counts)]), strict=True
            ):
                parts[role].append((x[part], y[part]))
        if not isinstance(server, tuple):
            server = (torch.cat([x for x, _ in parts["server"]]), torch.cat([y for _, y in parts["server"]]))
        return cls(parts["train"], parts["test"], server, parts["holdout"] if holdout else None, seed, augment)


def _in_blocks(x: Tensor, y: Tensor, size: int = 1000) -> Examples:
    """The server's examples as several owners', so that workers can share the judging."""
    return Examples(x, y, torch.tensor([*range(0, len(y), size), len(y)]))


def _checked(role: str, client: int, pair: Pair, shape: torch.Size) -> Pair:
    where = role if role == "server" else f"{role}[{client}]"
    x, y = (torch.as_tensor(part) if not isinstance(part, np.ndarray) else torch.from_numpy(part) for part in pair)
    if y.dim() != 1 or len(x) != len(y) or not len(y):
        raise UserError(
            f"{where} has x of shape {list(x.shape)} and y of shape {list(y.shape)}; valid is n > 0 examples and n labels"
        )
    if x.shape[1:] != shape:
        raise UserError(f"{where} has examples of shape {list(x.shape[1:])} but train[0] has {list(shape)}; they must agree")
    if y.is_floating_point() or y.is_complex() or int(y.min()) < 0:
        raise UserError(f"{where} has labels of type {y.dtype}, smallest {y.min()}; valid are whole numbers from 0")
    if x.is_floating_point():
        x = x.float() if x.dtype != torch.float64 else x
        if not bool(torch.isfinite(x).all()):
            raise UserError(f"{where} has examples that are NaN or infinite; all values must be finite")
    return x.contiguous(), y.long()
