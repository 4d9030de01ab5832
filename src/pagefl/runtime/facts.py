"""What a checkpoint holds beside its tensors. Someone else's checkpoint may hold any JSON value."""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from pagefl.core.errors import shortened

Recorded = Literal["rounds.jsonl", "clients.jsonl", "bias.jsonl"]  # files that checkpoints vouch for
Count = Annotated[int, Field(ge=0, le=10**18)]


class Claim(BaseModel, strict=True):
    """The number of bytes that were written to a file, and their hash."""

    size: Count
    sha256: str = ""


class Facts(BaseModel, strict=True):
    """A node's checkpoint has only `round`, a stage has no `records`, and version 0.1.0 had `sizes`
    instead."""

    round: Count
    payoffs: dict[Literal["server", "clients"], float] = {}
    gradients: dict[Literal["training", "personal"], float | None] = {}
    equilibrium: Count | None = None
    over: bool = False
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
