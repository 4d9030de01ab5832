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

from . import facts as known

NAME, PREVIOUS = "checkpoint", "checkpoint.previous"


class Damaged(UserError):
    """The file is missing or is not what was written."""


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
    tensors, metadata = _open(path, with_tensors=True)
    text = metadata.get("facts", "")
    if metadata.get("digest") != digest(tensors, text):
        raise Damaged(f"{path} is damaged: its checksum differs")
    content = _parsed(path, text)
    if missing := [other for other in content["same"].values() if other not in tensors]:
        raise Damaged(f"{path} is damaged: it has no tensor {missing[0]!r}")
    return {**tensors, **{name: tensors[other] for name, other in content["same"].items()}}, content["facts"]


def read_facts(path: Path) -> dict[str, Any]:
    """Read only the facts, which have their own checksum. This is fast even if the tensors are large."""
    _, metadata = _open(path, with_tensors=False)
    if "facts_digest" not in metadata:  # version 0.1.0 has one checksum for everything
        return read(path)[1]
    text = metadata.get("facts", "")
    if metadata["facts_digest"] != digest({}, text):
        raise Damaged(f"{path} is damaged: the checksum of its facts differs")
    facts: dict[str, Any] = _parsed(path, text)["facts"]
    return facts


def digest(tensors: Mapping[str, Tensor], text: str = "") -> str:
    found = sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(repr((name, str(tensor.dtype), list(tensor.shape))).encode())
        if tensor.numel():
            found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _parsed(path: Path, text: str) -> dict[str, Any]:
    """A checksum shows that the text is as it was written, but not who wrote it."""
    try:
        return known.parse(text)
    except ValueError as error:
        raise Damaged(f"{path} is damaged: it does not hold what a run writes ({error})") from None


def _open(path: Path, *, with_tensors: bool) -> tuple[dict[str, Tensor], dict[str, str]]:
    if not path.is_file():
        raise Damaged(f"{path} is missing")
    try:
        with safe_open(path, framework="pt") as file:
            wanted = list(file.keys()) if with_tensors else []
            return {name: file.get_tensor(name) for name in wanted}, file.metadata() or {}
    except (SafetensorError, OSError, ValueError, KeyError, AttributeError, RuntimeError) as error:
        raise Damaged(f"{path} is damaged: it cannot be read ({' '.join(str(error).split())})") from error
