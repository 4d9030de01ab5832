"""What a checkpoint holds beside its tensors. Someone else's checkpoint may hold any JSON value.

It is read without torch, which takes seconds to import.
"""

import json
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError
from safetensors import SafetensorError, safe_open

from pagefl.core.errors import UserError, shortened

NAME, PREVIOUS = "checkpoint", "checkpoint.previous"

Recorded = Literal["rounds.jsonl", "clients.jsonl", "bias.jsonl"]  # files that checkpoints vouch for
Count = Annotated[int, Field(ge=0, le=10**18)]


class Damaged(UserError):
    """The file is missing or is not what was written."""


class Claim(BaseModel, strict=True):
    """The number of bytes that were written to a file, and their hash."""

    size: Count
    sha256: str = ""


class DeviceClasses(BaseModel, strict=True):
    """Classes of the simulated devices, and each client's, as a place among them."""

    names: Annotated[list[Annotated[str, Field(max_length=40)]], Field(max_length=20)]
    of: list[Annotated[int, Field(ge=0, lt=20)]]


class Facts(BaseModel, strict=True):
    """A node's checkpoint has only `round`, a stage has no `records`, and version 0.1.0 had `sizes`
    instead."""

    round: Count
    payoffs: dict[Literal["server", "clients"], float] = {}
    gradients: dict[Literal["training", "personal"], float | None] = {}
    equilibrium: Count | None = None
    over: bool = False
    epsilon: float = 0.0  # spent so far, of a private run
    classes: DeviceClasses | None = None
    spec: dict[str, Any] = {}
    data: dict[str, str] = {}
    version: str = ""  # of pagefl
    commit: str | None = None  # of its source, in a clone
    records: dict[Recorded, Claim] = {}
    sizes: dict[Recorded, Count] = {}


class Content(BaseModel, strict=True):
    facts: Facts
    same: dict[str, str]  # names of tensors that equal another


def parse(text: str) -> dict[str, Any]:
    """The facts and `same`. Raises a ValueError that says what is not as a run writes it."""
    try:
        content: dict[str, Any] = json.loads(text)
        Content.model_validate(content)
    except ValidationError as errors:
        error = errors.errors(include_url=False)[0]
        where = ".".join(map(str, error["loc"])) or "its content"
        raise ValueError(f"{shortened(where)}: {shortened(error['msg'])}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return content


def read_facts(path: Path) -> dict[str, Any]:
    """Read only the facts, which have their own checksum. This is fast even if the tensors are large."""
    if not path.is_file():
        raise Damaged(f"{path} is missing")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise Damaged(f"{path} is damaged: it cannot be read ({' '.join(str(error).split())})") from error
    if "facts_digest" not in metadata:  # version 0.1.0 has one checksum for everything
        from . import checkpoint

        return checkpoint.read(path)[1]
    text = metadata.get("facts", "")
    if metadata["facts_digest"] != sha256(text.encode()).hexdigest():
        raise Damaged(f"{path} is damaged: the checksum of its facts differs")
    facts: dict[str, Any] = parsed(path, text)["facts"]
    return facts


def parsed(path: Path, text: str) -> dict[str, Any]:
    """A checksum shows that the text is as it was written, but not who wrote it."""
    try:
        return parse(text)
    except ValueError as error:
        raise Damaged(f"{path} is damaged: it does not hold what a run writes ({error})") from None
