"""What settings mean: type, default, range and one sentence each, read from where they are defined."""

import inspect
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from pydantic import BaseModel

from .spec import own_settings

BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<", "multipleOf": "multiple of"}


class Setting(NamedTuple):
    name: str
    type: str
    default: str
    range: str
    meaning: str


def of_model(model: type[BaseModel], prefix: str = "", meanings: dict[str, str] | None = None) -> list[Setting]:
    """The settings of a pydantic model; tables within it are left out."""
    schema = model.model_json_schema()
    found = []
    for name, about in schema["properties"].items():
        if "$ref" in about or about.get("type") == "object":
            continue
        default = model.model_fields[name].default
        required = model.model_fields[name].is_required()
        meaning = (meanings or {}).get(name) or about.get("description", "")
        found.append(Setting(prefix + name, _type(about), "required" if required else str(default), _range(about), meaning))
    return found


def of_builder(builder: Callable[..., object], prefix: str) -> list[Setting]:
    """The settings of an algorithm, players or a task: the arguments of its constructor."""
    return of_model(own_settings(builder, skip=("seed",)), prefix, meanings(builder))


def meanings(builder: Callable[..., object]) -> dict[str, str]:
    """Lines such as `mu: strength of the pull` in a docstring."""
    lines = inspect.cleandoc(builder.__doc__ or "").splitlines()
    return {found[1]: found[2] for line in lines if (found := re.fullmatch(r"(\w+): (.+)", line))}


def summary(builder: Callable[..., object]) -> str:
    """A docstring without the lines that `meanings` reads."""
    lines = inspect.cleandoc(builder.__doc__ or "").splitlines()
    return "\n".join(line for line in lines if not re.fullmatch(r"(\w+): (.+)", line)).strip()


def _type(about: dict[str, Any]) -> str:
    if "enum" in about:
        return "one of " + ", ".join(str(value) for value in about["enum"])
    if "anyOf" in about:
        return " or ".join(_type(part) for part in about["anyOf"])
    if about.get("type") == "array":
        return f"list of {_type(about['items'])}" if "items" in about else "list"
    return {"integer": "integer", "number": "number", "boolean": "true or false", "string": "text"}[about["type"]]


def _range(about: dict[str, Any]) -> str:
    return ", ".join(f"{sign} {about[name]:g}" for name, sign in BOUNDS.items() if name in about)
