"""A checkpoint: one file of tensors and facts, without pickle, that is whole or is not believed."""

import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

NAME, PREVIOUS = "checkpoint", "checkpoint.previous"


class Damaged(Exception):
    """A file that is not what was written."""


def save(directory: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Written aside and renamed; the one before is kept. At every instant a whole one is there."""
    aside, current, previous = (directory / name for name in (f"{NAME}.aside", NAME, PREVIOUS))
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    places = {name: (tensor.data_ptr(), tensor.shape, tensor.dtype) for name, tensor in tensors.items() if tensor.numel()}
    first = {place: name for name, place in reversed(places.items())}
    same = {name: first[place] for name, place in places.items() if first[place] != name}  # one tensor under two names
    tensors = {name: tensor for name, tensor in tensors.items() if name not in same}
    text = json.dumps({"facts": facts, "same": same})
    save_file(tensors, aside, metadata={"facts": text, "digest": _digest(tensors, text)})
    with aside.open("rb") as file:
        os.fsync(file.fileno())
    if current.exists():
        link = directory / f"{PREVIOUS}.aside"
        link.unlink(missing_ok=True)
        os.link(current, link)
        link.replace(previous)
    aside.replace(current)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError) as error:
        raise Damaged(f"{path.name} cannot be read ({error})") from error
    text = metadata.get("facts", "")
    if metadata.get("digest") != _digest(tensors, text):
        raise Damaged(f"{path.name} is not as it was written (its checksum differs)")
    known = json.loads(text)
    return {**tensors, **{name: tensors[other] for name, other in known["same"].items()}}, known["facts"]


def _digest(tensors: dict[str, Tensor], facts: str) -> str:
    digest = sha256(facts.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(repr((name, str(tensor.dtype), list(tensor.shape))).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
