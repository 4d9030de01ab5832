"""RunSpec: everything that decides a run, checked at the door, complete when written down."""

import inspect
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from torch import Tensor

from pagefl.algorithms import ALGORITHMS
from pagefl.core.algorithm import Algorithm
from pagefl.core.errors import UserError
from pagefl.game.players import PLAYERS
from pagefl.game.protocol import Players
from pagefl.runtime.settings import Settings
from pagefl.runtime.task import Task

from . import settings as paper
from .tasks import TASKS

Raw = dict[str, Any]
Kind = TypeVar("Kind", bound=BaseModel)
TABLES = ("task", "algorithm", "players")


class RunSpec(Settings):
    task: Raw = Field({"name": "synthetic"}, description="name, and the task's own settings")
    algorithm: Raw = Field({"name": "fedavg"}, description="name, and the algorithm's own settings")
    players: Raw = Field({"name": "fixed"}, description="name, and the players' own settings")

    @property
    def label(self) -> str:
        """As people call it: the algorithm, and its players where they are not the fixed ones."""
        pair = {"algorithm": self.algorithm["name"], "players": self.players["name"]}
        short = [name for name, meaning in paper.NICKNAMES.items() if meaning == pair]
        return short[0] if short else pair["algorithm"] + (f"+{pair['players']}" if pair["players"] != "fixed" else "")

    def make_task(self) -> Task:
        return make_task(self.task, self.seed)

    def make_algorithm(self) -> Algorithm:
        own = dict(self.algorithm)
        return ALGORITHMS[own.pop("name")](**own)

    def make_players(self) -> Players:
        own = dict(self.players)
        return PLAYERS[own.pop("name")](**own)

    def toml(self) -> str:
        """Every default written out."""
        return dump(self.model_dump())


def resolve(raw: Raw, task: Task | None = None, algorithm: Algorithm | None = None) -> RunSpec:
    """Fill in: the paper's settings of the task, then of the algorithm, then what the user says.

    `task` and `algorithm`: the user's own objects, which stand in the spec by their names.
    """
    raw = {name: {"name": value} if name in TABLES and isinstance(value, str) else value for name, value in plain(raw).items()}
    if task is not None:
        raw["task"] = {"name": task.name}
        defaults: Mapping[str, Any] = plain(task.settings)
    else:
        raw["task"] = _resolve_own("task", raw.get("task", {}), TASKS, skip=("seed",))
        defaults = paper.TASKS[raw["task"]["name"]]
    if isinstance(raw.get("algorithm"), dict) and raw["algorithm"].get("name") in paper.NICKNAMES:
        meaning = paper.NICKNAMES[raw["algorithm"]["name"]]
        raw["algorithm"] = {**raw["algorithm"], "name": meaning["algorithm"]}
        if isinstance(given := raw.get("players", {}), dict):
            raw["players"] = {"name": meaning["players"], **given}
    own_players = paper.PLAYERS.get(raw["task"]["name"], {})
    raw["players"] = _resolve_own("players", raw.get("players", {}), PLAYERS, defaults=own_players)
    if algorithm is not None:
        raw["algorithm"] = {"name": type(algorithm).__name__.lower(), **_arguments(algorithm)}
    else:
        played = paper.PLAYED.get(raw["players"]["name"], paper.APART)
        raw["algorithm"] = _resolve_own("algorithm", raw.get("algorithm", {}), ALGORITHMS, defaults=played)
    changed = paper.ALGORITHMS.get(raw["algorithm"]["name"], {})
    return _validate(RunSpec, {**defaults, **changed, **raw})


def make_task(table: Raw, seed: int) -> Task:
    own = _resolve_own("task", table, TASKS, skip=("seed",))
    return TASKS[own.pop("name")](seed=seed, **own)


def dump(raw: Raw) -> str:
    return tomli_w.dumps(raw)


def read(path: Path) -> Raw:
    """A spec file as it stands."""
    if not path.is_file():
        raise UserError(f"spec = {path}: there is no such file; valid is a TOML file of settings")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"spec = {path}: not valid TOML: {error}") from error
    except OSError as error:
        raise UserError(f"spec = {path}: cannot be read: {error.strerror}") from error


def recorded(path: Path) -> RunSpec:
    """A run's spec as it was written down. The task and the algorithm may be the user's own, known by their names alone."""
    raw = read(path)
    for table in TABLES:
        if not isinstance(raw.get(table), dict) or not isinstance(raw[table].get("name"), str):
            raise UserError(f"{path}: {table}.name is missing; expected the complete spec of a run")
    return _validate(RunSpec, raw, f"{path}: ")


def of_text(text: str) -> RunSpec:
    """A complete spec as it was written down."""
    return resolve(tomllib.loads(text))


def override(raw: Raw, assignment: str) -> None:
    """`algorithm.mu=0.01`: the value is TOML, or a plain string."""
    name, sign, text = assignment.partition("=")
    keys = name.strip().split(".")
    if not sign or not all(keys) or len(keys) > 2:
        raise UserError(f"--set {assignment}: valid is NAME=VALUE or TABLE.NAME=VALUE, such as algorithm.mu=0.01")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    put(raw, name.strip(), value)


def put(raw: Raw, name: str, value: Any) -> None:
    """`name`: of a setting, or of a table's setting as in `algorithm.mu`."""
    table_name, _, own = name.rpartition(".")
    if table_name:
        table = raw.get(table_name, {})
        raw[table_name] = table = {"name": table} if isinstance(table, str) else dict(table)
        table[own] = value
    else:
        raw[name] = value


def plain(value: Any) -> Any:
    """Python's own numbers and lists in place of NumPy's, torch's and tuples, as TOML has them."""
    if isinstance(value, Mapping):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, np.generic | np.ndarray | Tensor):
        return value.tolist()
    return value


def own_settings(builder: Callable[..., object], skip: Iterable[str] = ()) -> type[BaseModel]:
    """The constructor's signature is the config."""
    wanted: dict[str, Any] = {
        name: (p.annotation, ... if p.default is p.empty else p.default)
        for name, p in inspect.signature(builder, eval_str=True).parameters.items()
        if name not in skip
    }
    return create_model("Own", __config__=ConfigDict(extra="forbid", strict=True), **wanted)


def _resolve_own(
    kind: str,
    given: Any,
    registry: Mapping[str, Callable[..., object]],
    skip: Iterable[str] = (),
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
) -> Raw:
    """`defaults`: by name, what the paper has in place of the signature's defaults."""
    if not isinstance(given, dict):
        raise UserError(f"{kind} = {given!r}: valid is a name, or a table with a name and settings")
    own = dict(given)
    name = own.pop("name", None) or next(iter(registry))
    if name not in registry:
        valid = [*registry, *(paper.NICKNAMES if kind == "algorithm" else ())]
        raise UserError(f"{kind} = {name!r}: there is no such {kind}{_meant(str(name), valid)}; valid is {', '.join(valid)}")
    own = {**(defaults or {}).get(name, {}), **own}
    return {"name": name, **_validate(own_settings(registry[name], skip), own, f"{kind}.").model_dump()}


def _arguments(algorithm: Algorithm) -> Raw:
    """As far as TOML has words for them: of a function or an object its name, of None nothing."""
    given: Raw = {f.name: plain(getattr(algorithm, f.name)) for f in fields(algorithm)} if is_dataclass(algorithm) else {}
    known = (bool, int, float, str, list, dict)
    return {
        name: value if isinstance(value, known) else getattr(value, "__qualname__", type(value).__qualname__)
        for name, value in given.items()
        if value is not None
    }


def _validate(kind: type[Kind], values: Raw, prefix: str = "") -> Kind:
    try:
        return kind.model_validate(values)
    except ValidationError as errors:
        error = errors.errors()[0]
        field = prefix + ".".join(map(str, error["loc"]))
        if error["type"] == "extra_forbidden":
            valid = list(kind.model_fields)
            hint = _meant(str(error["loc"][0]), valid)
            names = ", ".join(valid) or "no setting"
            raise UserError(f"{field} = {error['input']!r}: there is no such setting{hint}; valid is {names}") from None
        raise UserError(f"{field} = {error['input']!r}: {error['msg'].replace('Input should', 'it should')}") from None


def _meant(name: str, valid: Iterable[str]) -> str:
    close = get_close_matches(name, list(valid), 1)
    return f"; did you mean {close[0]}?" if close else ""
