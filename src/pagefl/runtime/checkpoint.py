"""Checkpoints: one file of tensors and facts, without pickle. Checksums detect damage."""

import json
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pagefl.core.errors import UserError

from .facts import NAME as NAME
from .facts import PREVIOUS as PREVIOUS
from .facts import Damaged as Damaged
from .facts import parsed
from .facts import read_facts as read_facts


def save(directory: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write a checkpoint and keep the previous one. A complete checkpoint exists at every moment."""
    aside, current, previous = (directory / name for name in (f"{NAME}.aside", NAME, PREVIOUS))
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    places = {
        name: (tensor.data_ptr(), tensor.shape, tensor.dtype)
        for name, tensor in tensors.items()
        if tensor.numel()
    }
    first = {place: name for name, place in reversed(places.items())}
    same = {name: first[place] for name, place in places.items() if first[place] != name}  # repeated tensors
    tensors = {name: tensor for name, tensor in tensors.items() if name not in same}
    text = json.dumps({"facts": facts, "same": same})
    own = {"facts": text, "facts_digest": digest({}, text), "digest": digest(tensors, text)}
    try:
        save_file(tensors, aside, metadata=own)
    except SafetensorError as error:  # also raised for a full disk
        aside.unlink(missing_ok=True)
        raise UserError(
            f"{current}: it cannot be written ({error}); nothing already written is lost"
        ) from error
    with aside.open("rb") as file:
        os.fsync(file.fileno())
    if current.exists():
        link = directory / f"{PREVIOUS}.aside"
        link.unlink(missing_ok=True)
        os.link(current, link)
        link.replace(previous)
    aside.replace(current)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors, metadata = _open(path)
    text = metadata.get("facts", "")
    if metadata.get("digest") != digest(tensors, text):
        raise Damaged(f"{path} is damaged: its checksum differs")
    content = parsed(path, text)
    if missing := [other for other in content["same"].values() if other not in tensors]:
        raise Damaged(f"{path} is damaged: it has no tensor {missing[0]!r}")
    return {**tensors, **{name: tensors[other] for name, other in content["same"].items()}}, content["facts"]


def digest(tensors: Mapping[str, Tensor], text: str = "") -> str:
    found = sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(repr((name, str(tensor.dtype), list(tensor.shape))).encode())
        if tensor.numel():
            found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _open(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    if not path.is_file():
        raise Damaged(f"{path} is missing")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, KeyError, AttributeError, RuntimeError) as error:
        raise Damaged(f"{path} is damaged: it cannot be read ({' '.join(str(error).split())})") from error
