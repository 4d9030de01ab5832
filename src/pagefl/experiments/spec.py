"""RunSpec: all settings of a run, checked when they are read and complete when they are written."""

import inspect
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from torch import Tensor

from pagefl.algorithms import ALGORITHMS
from pagefl.core.algorithm import Algorithm
from pagefl.core.errors import UserError, shortened, shown
from pagefl.core.files import regular
from pagefl.game.players import PLAYERS
from pagefl.game.protocol import Players
from pagefl.game.rewards import DemandRatio
from pagefl.runtime import devices, privacy
from pagefl.runtime.settings import Settings
from pagefl.runtime.task import Task

from . import defaults, own_code
from .tasks import BUILDERS, TASKS, players_of

Raw = dict[str, Any]
Kind = TypeVar("Kind", bound=BaseModel)
TABLES = ("task", "algorithm", "players")
OF_SETTINGS = (
    "personal",
    "privacy",
    "deploy",
    "defence",
    "attack",
    "devices",
)  # tables of the run's own settings
LARGEST = 1_000_000  # bytes of the largest spec file
DEEPEST = 20  # levels of tables and lists in a spec
OLD_NAMES = {"landing": "decay"}  # players' settings, as version 0.1.0 called them


class RunSpec(Settings):
    task: Raw = Field({"name": "synthetic"}, description="name, and the task's own settings")
    algorithm: Raw = Field(
        {"name": defaults.DEFAULT_ALGORITHM}, description="name, and the algorithm's own settings"
    )
    players: Raw = Field({"name": "fixed"}, description="name, and the players' own settings")

    @property
    def label(self) -> str:
        """A short name: the algorithm, and its players unless they are fixed."""
        return defaults.label(self.algorithm["name"], self.players["name"])

    def make_task(self) -> Task:
        return make_task(self.task, self.seed)

    def make_algorithm(self) -> Algorithm:
        own = dict(self.algorithm)
        made: Algorithm = _builder("algorithm", own.pop("name"), ALGORITHMS)(**own)
        return made

    def make_players(self) -> Players:
        own = dict(self.players)
        made: Players = _builder("players", own.pop("name"), PLAYERS)(**own)
        return made

    def without_effect(self) -> list[str]:
        """Settings that were given but change nothing, in a sentence each."""
        players, fair = self.players["name"], DemandRatio()
        said = []
        if (
            players in PLAYERS
            and not PLAYERS[players].uses_demand
            and any(bias != fair for _, bias in self.shifts())
        ):
            said.append(
                f"bias = {shown(self.bias)}: players {players} do not learn from it; it changes nothing"
            )
        if players == "fixed" and self.freeze:
            said.append(f"freeze = {self.freeze}: fixed players change no factor; it changes nothing")
        needed = {"scaled": self.devices.name != "none", "partial": self.devices.deadline > 0}
        if not needed.get(players, True):
            missing = "simulated devices" if players == "scaled" else "devices and their deadline"
            said.append(f"players = {players}: without {missing}, they play as fixed")
        return said

    def toml(self) -> str:
        """The complete spec as TOML, with every default."""
        return dump(self.model_dump())


def resolve(
    raw: Raw, task: Task | None = None, algorithm: Algorithm | None = None, players: Players | None = None
) -> RunSpec:
    """Complete a spec: the user's settings override the algorithm's, which override the task's.

    `task`, `algorithm` and `players`: the user's own objects. The spec contains their names.
    """
    if "sweep" in raw:
        raise UserError("sweep: a run has no grid of settings; `pagefl sweep FILE` runs one")
    try:
        raw = plain(raw)
    except RecursionError:
        raise UserError("the spec is nested too deeply; expected tables of settings") from None
    raw |= {kind: _table(kind, raw.get(kind, {})) for kind in TABLES}
    if task is not None:
        raw["task"] = _stands_for("task", raw["task"], _table("task", task.name))
        of_task: Mapping[str, Any] = plain(task.settings)
    else:
        raw["task"] = _resolve_own("task", raw["task"], BUILDERS, skip=("seed",))
        of_task = TASKS[raw["task"]["name"]].run
    if _is_private(raw) and "personal" not in raw:  # clients' hold-out losses would choose the step
        raw["personal"] = {"when": "never"}
    if algorithm is None:
        raw |= _without_nickname(raw["algorithm"], raw["players"], raw.get("personal", {}))
    given = raw["players"] = {OLD_NAMES.get(name, name): value for name, value in raw["players"].items()}
    if players is not None:
        raw["players"] = _stands_for(
            "players", given, {"name": type(players).__name__.lower(), **_arguments(players)}
        )
    else:
        raw["players"] = _resolve_own(
            "players", given, PLAYERS, usual=players_of(raw["task"]["name"], of_task)
        )
    least, most = raw["players"].get("lr_min", 0.0), raw["players"].get("lr_max", math.inf)
    if least >= most:
        raise UserError(f"players.lr_min = {least}: it should be less than players.lr_max = {most}")
    if algorithm is not None:
        own = {"name": type(algorithm).__name__.lower(), **_arguments(algorithm)}
        raw["algorithm"] = _stands_for("algorithm", raw["algorithm"], own)
    else:
        played = defaults.PLAYED.get(raw["players"]["name"], defaults.APART)
        raw["algorithm"] = _resolve_own("algorithm", raw["algorithm"], ALGORITHMS, usual=played)
    changed = defaults.ALGORITHMS.get(raw["algorithm"]["name"], {})
    spec = _validate(RunSpec, {**of_task, **changed, **raw})
    privacy.check(spec)
    devices.check(spec)
    spec = spec.model_copy(update={"privacy": privacy.solved(spec)})
    wider = (
        {name: value for name, value in _reaching(spec).items() if name not in given}
        if players is None
        else {}
    )
    return spec.model_copy(update={"players": {**spec.players, **wider}}) if wider else spec


def _is_private(raw: Raw) -> bool:
    table = raw.get("privacy")
    return isinstance(table, dict) and bool(table.get("epsilon"))


def _reaching(spec: RunSpec) -> Raw:
    """Ranges of the players, widened where they do not contain the run's lr and epochs."""
    held, wider = spec.players, {}
    if "lr_min" in held and "lr_max" in held:
        wider = {"lr_min": min(held["lr_min"], spec.lr), "lr_max": max(held["lr_max"], spec.lr)}
    if "epochs_max" in held:
        wider["epochs_max"] = max(held["epochs_max"], spec.epochs)
    return {name: value for name, value in wider.items() if value != held[name]}


def make_task(table: Raw, seed: int) -> Task:
    own = _resolve_own("task", table, BUILDERS, skip=("seed",))
    return BUILDERS[own.pop("name")](seed=seed, **own)


def dump(raw: Raw) -> str:
    return tomli_w.dumps(raw)


def read(path: Path) -> Raw:
    """Read a spec file, without checking or completing it."""
    where = f"spec = {shortened(str(path), 300)}"
    try:
        regular(path, LARGEST)
        return parse(path.read_bytes(), where)
    except FileNotFoundError:
        raise UserError(f"{where}: there is no such file; expected a TOML file of settings") from None
    except OSError as error:
        raise UserError(f"{where}: cannot be read: {error.strerror}") from None


def recorded(path: Path) -> RunSpec:
    """The spec of a recorded run. Its task and algorithm may be the user's own, known only by name."""
    raw = read(path)
    for table in TABLES:
        if not isinstance(raw.get(table), dict) or not isinstance(raw[table].get("name"), str):
            raise UserError(f"{path}: {table}.name is missing; expected the complete spec of a run")
    return _validate(RunSpec, raw, f"{path}: ")


def of_text(text: str) -> RunSpec:
    """A complete spec from its text."""
    return resolve(parse(text.encode(errors="surrogatepass"), "spec"))


def name_in(text: str, kind: str) -> object:
    """The name of the task, algorithm or players in a complete spec."""
    table = parse(text.encode(errors="surrogatepass"), "spec").get(kind)
    return table.get("name") if isinstance(table, dict) else table


def parse(content: bytes, where: str) -> Raw:
    try:
        raw = tomllib.loads(content.decode("utf-8-sig"))
    except RecursionError:
        raise UserError(f"{where}: not valid TOML: it is nested too deeply") from None
    except ValueError as error:
        raise UserError(f"{where}: not valid TOML: {shortened(str(error), 120)}") from None
    level: list[Any] = [raw]
    for _ in range(DEEPEST):  # a loop, because dotted keys nest tables deeper than calls can follow
        entries = (
            entry for value in level for entry in (value.values() if isinstance(value, dict) else value)
        )
        level = [entry for entry in entries if isinstance(entry, dict | list)]
    if level:
        raise UserError(
            f"{where}: tables and lists are nested more than {DEEPEST} levels deep; "
            "expected tables of settings"
        )
    return raw


def override(raw: Raw, assignment: str) -> None:
    """Apply an assignment such as `algorithm.mu=0.01`. The value is TOML, or a plain string."""
    name, sign, text = assignment.partition("=")
    keys = name.strip().split(".")
    if not sign or not all(keys) or len(keys) > 2:
        given = shortened(assignment)
        raise UserError(f"--set {given}: expected NAME=VALUE or TABLE.NAME=VALUE, such as algorithm.mu=0.01")
    try:
        value = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # also for very long numbers and very deep nesting
        value = {}
    # A line break in the value must not add a second setting.
    put(raw, name.strip(), value["value"] if [*value] == ["value"] else text.strip())


def put(raw: Raw, name: str, value: Any) -> None:
    """Set a setting by its name, or a setting of a table by a name such as `algorithm.mu`."""
    table, _, own = name.rpartition(".")
    if table in TABLES:
        raw[table] = {**_table(table, raw.get(table, {})), own: value}
    elif table in OF_SETTINGS and isinstance(given := raw.get(table, {}), dict):
        raw[table] = {**given, own: value}
    elif table:
        raise UserError(
            f"{shortened(name)} = {shown(value)}: {shortened(table)} is not a table; tables are "
            f"{', '.join((*TABLES, *OF_SETTINGS[:-1]))} and {OF_SETTINGS[-1]}"
        )
    else:
        raw[name] = value


def plain(value: Any) -> Any:
    """Convert NumPy and torch values and tuples to Python numbers and lists, as TOML needs them."""
    if isinstance(value, Mapping):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, np.generic | np.ndarray | Tensor):
        return value.tolist()
    return value


@cache
def own_settings(builder: Callable[..., object], skip: tuple[str, ...] = ()) -> type[BaseModel]:
    """A pydantic model of the constructor's signature: its arguments are the settings."""
    wanted: dict[str, Any] = {
        name: (p.annotation, ... if p.default is p.empty else p.default)
        for name, p in inspect.signature(builder, eval_str=True).parameters.items()
        if name not in skip
    }
    return create_model("Own", __config__=ConfigDict(extra="forbid", strict=True), **wanted)


def _table(kind: str, given: Any) -> Raw:
    """The setting as a table. A name alone becomes a table with this name."""
    table = {"name": given} if isinstance(given, str) else given
    if not isinstance(table, dict):
        raise UserError(f"{kind} = {shown(given)}: expected a name, or a table with a name and settings")
    if "name" in table and (not isinstance(table["name"], str) or not table["name"]):
        listed = f"`pagefl list {kind.removesuffix('s')}s`"
        raise UserError(f"{kind} = {shown(table['name'])}: expected a name; {listed} prints them")
    return dict(table)


def _without_nickname(algorithm: Raw, players: Raw, personal: Any) -> Raw:
    """What the algorithm's name means, if it stands for an algorithm with its players; otherwise nothing."""
    nickname = algorithm.get("name", "")
    meaning = defaults.NICKNAMES.get(nickname)
    if meaning is None:
        return {}
    players = {"name": meaning["players"], **players}
    if players["name"] != meaning["players"]:
        raise UserError(
            f"players = {shown(players['name'])}: algorithm = {nickname!r} means {meaning['algorithm']} "
            "with players "
            f"{meaning['players']}; leave players out, or choose algorithm = {meaning['algorithm']!r}"
        )
    if "personal" in meaning and isinstance(personal, dict) and personal.get("when") == "never":
        raise UserError(
            f"personal.when = 'never': algorithm = {nickname!r} means {meaning['algorithm']} with the "
            f"personal step; leave it out, or choose algorithm = {meaning['algorithm']!r}"
        )
    return {"algorithm": {**algorithm, "name": meaning["algorithm"]}, "players": players}


def _stands_for(kind: str, given: Raw, own: Raw) -> Raw:
    """The settings of a user's own object. Other values are refused, because they would be ignored."""
    for name, value in given.items():
        if name not in own or own[name] != value:
            has = (
                f"has {_name(name)} = {shown(own[name])}" if name in own else f"has no setting {shown(name)}"
            )
            raise UserError(
                f"{kind}.{_name(name)} = {shown(value)}: your own {kind} {own['name']!r} {has}; change "
                "the object instead"
            )
    return own


def _resolve_own(
    kind: str,
    given: Raw,
    registry: Mapping[str, Callable[..., object]],
    skip: tuple[str, ...] = (),
    usual: Mapping[str, Mapping[str, Any]] | None = None,
) -> Raw:
    """`usual`: by name, the paper's values in place of the defaults in the signature."""
    own = dict(given)
    name = own.pop("name", next(iter(registry)))
    own = {**(usual or {}).get(name, {}), **own}
    settings = own_settings(_builder(kind, name, registry), skip)
    return {"name": name, **_validate(settings, own, f"{kind}.").model_dump()}


def _builder(kind: str, name: str, registry: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    if kind in own_code.KINDS and own_code.is_own(name):
        return own_code.find(kind, name)
    if name not in registry:
        valid = [*registry, *(defaults.NICKNAMES if kind == "algorithm" else ())]
        own = f", or {kind} of your own as module:Class" if kind in own_code.KINDS else ""
        raise UserError(
            f"{kind} = {shown(name)}: there is no such {kind}{_meant(name, valid)}; expected one of "
            f"{', '.join(valid)}{own}"
        )
    return registry[name]


def _arguments(of: Algorithm | Players) -> Raw:
    """The object's arguments as TOML values. Functions and objects become names, and None is left out."""
    given: Raw = {f.name: plain(getattr(of, f.name)) for f in fields(of)} if is_dataclass(of) else {}
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
        error = errors.errors(include_url=False)[0]
        *path, last = error["loc"] or ("",)
        field, given = prefix + ".".join(map(_name, (*path, last))), shown(error["input"])
        if error["type"] == "extra_forbidden":
            holder: Any = kind
            for part in path:
                holder = holder.model_fields[part].annotation
            valid = list(holder.model_fields)
            names = f"one of {', '.join(valid)}" if valid else "no setting"
            hint = _meant(_name(last), valid)
            raise UserError(f"{field} = {given}: there is no such setting{hint}; expected {names}") from None
        if error["type"] == "missing":
            raise UserError(f"{field} is missing: it has no default; set it, as in --set {field}=…") from None
        message = shortened(error["msg"].replace("Input should", "it should"), 200)
        raise UserError(f"{field} = {given}: {message}") from None


def _name(key: object) -> str:
    return shortened(key) if isinstance(key, str) else shown(key)


def _meant(name: str, valid: Iterable[str]) -> str:
    close = get_close_matches(shortened(name), list(valid), 1)
    return f"; did you mean {close[0]}?" if close else ""
