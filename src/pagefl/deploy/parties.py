"""The data of each party: one file with its own examples, and nothing of the others."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pagefl.core.errors import UserError
from pagefl.core.examples import ClientData, Examples, ServerData, Splits
from pagefl.core.files import regular
from pagefl.data.augment import crop_and_flip

SERVER = "server.safetensors"
AUGMENTS = {"crop_and_flip": crop_and_flip}


def client_file(number: int) -> str:
    return f"client-{number}.safetensors"


def write(data: Splits, folder: Path) -> None:
    """Write a federation's examples: one file for the server, one for each client."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"augment": data.train.augment.__name__} if data.train.augment else {}
    facts |= {"in_order": "yes"} if data.train.in_order else {}
    own = {"train": data.train, "test": data.test, **({"holdout": data.holdout} if data.holdout else {})}
    for i in range(len(data.train)):
        save_file(
            _flat({role: examples.client(i) for role, examples in own.items()}),
            folder / client_file(i),
            facts or None,
        )
    public = {
        role: (examples.x, examples.y)
        for role, examples in (("game", data.game), ("server_test", data.server_test))
    }
    save_file(_flat(public), folder / SERVER)


def _flat(parts: dict[str, tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    return {
        f"{role}.{side}": value.contiguous()
        for role, pair in parts.items()
        for side, value in zip("xy", pair, strict=True)
    }


def read_client(path: Path, holdout: bool) -> ClientData:
    """Read a block of one client."""
    tensors, facts = _read(path, ["train", "test", *(["holdout"] if holdout else [])], ["holdout"])
    augment = AUGMENTS.get(facts.get("augment", ""))
    train = replace(Examples.of([tensors["train"]], augment), in_order="in_order" in facts)
    test, held = (Examples.of([tensors[role]]) if role in tensors else None for role in ("test", "holdout"))
    assert test is not None
    return ClientData(train, test, held)


def read_server(path: Path) -> ServerData:
    tensors, _ = _read(path, ["game", "server_test"])
    return ServerData(*(Examples.of([tensors[role]]) for role in ("game", "server_test")))


def _read(
    path: Path, roles: list[str], perhaps: Sequence[str] = ()
) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, str]]:
    wanted = [f"{role}.{side}" for role in roles for side in "xy"]
    try:
        regular(path)
        with safe_open(path, framework="pt") as file:
            facts = file.metadata() or {}
            roles = [*roles, *(role for role in perhaps if role not in roles and f"{role}.x" in file.keys())]  # noqa: SIM118
            wanted = [f"{role}.{side}" for role in roles for side in "xy"]
            if missing := [name for name in wanted if name not in file.keys()]:  # noqa: SIM118 (not a dict)
                raise UserError(
                    f"data = {path}: it has no {', '.join(missing)}; expected a safetensors file with "
                    f"{wanted}"
                )
            tensors = {name: file.get_tensor(name) for name in wanted}
    except UserError:
        raise
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(
            f"data = {path}: it cannot be read ({error}); expected a safetensors file with {wanted}"
        ) from error
    pairs = {role: (tensors[f"{role}.x"], tensors[f"{role}.y"]) for role in roles}
    for role, (x, y) in pairs.items():
        if y.dim() != 1 or not len(y) or len(x) != len(y) or y.dtype != torch.int64 or int(y.min()) < 0:
            raise UserError(
                f"data = {path}: {role} has x of shape {list(x.shape)} and y of shape {list(y.shape)}, "
                f"{y.dtype}; "
                "expected n > 0 examples and n labels from 0, int64"
            )
        if x.is_floating_point() and not bool(torch.isfinite(x).all()):
            raise UserError(
                f"data = {path}: {role}.x has values that are NaN or infinite; all must be finite"
            )
    return pairs, facts
