"""Which settings of runs differ: from the defaults, or between runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from pagefl.core.errors import UserError
from pagefl.runtime.settings import NO_MATTER

from . import own_code
from .spec import TABLES, Raw, resolve

Flat = dict[str, Any]
APART = ("seed", *NO_MATTER)  # shown elsewhere, or without effect on results


def flat(raw: Mapping[str, Any], prefix: str = "") -> Flat:
    """Entry `mu` of table `algorithm` becomes `algorithm.mu`."""
    parts = (
        flat(v, f"{prefix}{key}.") if isinstance(v, Mapping) else {prefix + key: v} for key, v in raw.items()
    )
    return {key: value for part in parts for key, value in part.items()}


def from_defaults(raw: Raw) -> Flat:
    """The settings of a complete spec that are not the defaults of its task, algorithm and players.

    Nothing is imported for it: of the user's own task, algorithm or players, all settings are shown.
    """
    own = flat({name: value for name, value in raw.items() if name not in APART})
    names = {kind: table.get("name") for kind in TABLES if isinstance(table := raw.get(kind), dict)}
    known = {kind: name for kind, name in names.items() if kind == "task" or not own_code.is_own(str(name))}
    usual: Flat = {}
    for asked in (known, {kind: name for kind, name in known.items() if kind != "task"}, {}):
        try:
            usual = flat(resolve(dict(asked)).model_dump())
            break
        except UserError:  # a name that is not known here
            continue
    named = {f"{kind}.name" for kind in TABLES}
    return {name: value for name, value in own.items() if name not in named and usual.get(name) != value}


def between(raws: Sequence[Raw]) -> dict[str, list[Any]]:
    """The settings in which these specs differ, and the value in each of them; None where it has none.

    What only some algorithms or players have is left out: their names say it.
    """
    every = [flat({name: value for name, value in raw.items() if name not in NO_MATTER}) for raw in raws]
    names = dict.fromkeys(name for own in every for name in own)
    values = {name: [own.get(name) for own in every] for name in names}
    named = {kind for kind in TABLES if _differ(values.get(f"{kind}.name", []))}
    return {
        name: found
        for name, found in values.items()
        if _differ(found) and not (name.partition(".")[0] in named and None in found)
    }


def _differ(values: Sequence[Any]) -> bool:
    return any(value != values[0] for value in values)
