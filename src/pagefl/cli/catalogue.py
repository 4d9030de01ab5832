"""`pagefl list, show`: algorithms, players and tasks, with their settings and sources."""

import sys
from collections.abc import Callable
from inspect import cleandoc
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from pagefl.core.garbage import not_searched

from .terminal import console

if TYPE_CHECKING:
    from pagefl.experiments.describe import Setting


@not_searched()
def list_(kind: Annotated[str, typer.Argument(help="algorithms, players, tasks or tables")]) -> None:
    """List the algorithms, players, tasks, or the paper's tables and figures."""
    from pagefl.core.errors import UserError
    from pagefl.experiments.paper import TABLES

    listed = {of: {name: _title(about) for name, about in own.items()} for of, own in _catalogue().items()}
    listed["tables"] = {name: table.title for name, table in TABLES.items()}
    if kind not in listed:
        raise UserError(f"list {kind}: expected {' or '.join(listed)}")
    table = Table("name", "what", box=None)
    for name, title in listed[kind].items():
        table.add_row(name, title)
    console.print(table)


def _title(about: object) -> str:
    """The first paragraph of the docstring."""
    return " ".join((about.__doc__ or "").strip().partition("\n\n")[0].split())


@not_searched()
def show(
    name: Annotated[
        str, typer.Argument(help="A task, an algorithm, players, or `settings` for all settings.")
    ],
    setting: Annotated[str | None, typer.Argument(help="With `settings`: one of them, such as lr.")] = None,
) -> None:
    """Print what something is, where it comes from, and its settings."""
    from pagefl.core.errors import UserError
    from pagefl.experiments import defaults, describe
    from pagefl.experiments.tasks import TASKS

    if name == "settings":
        _show_settings(setting)
        return
    kinds = _catalogue()
    kind = next((kind for kind, entries in kinds.items() if name in entries), None)
    if kind is None:
        valid = dict.fromkeys(entry for entries in kinds.values() for entry in entries)
        raise UserError(
            f"show {name}: there is no such task, algorithm or players; expected settings, or one of "
            f"{', '.join(valid)}"
        )
    builder = kinds[kind][name]
    source = None if kind == "tasks" else sys.modules[builder.__module__].__doc__
    about = [cleandoc(text) for text in (source, describe.summary(builder)) if text]
    console.print(Text(name, style="bold"), *about, sep="\n\n", highlight=False, markup=False)
    prefix = "players" if name in kinds["players"] else kind.removesuffix("s")
    _print(describe.of_builder(builder, f"{prefix}."))
    changed = TASKS[name].run if kind == "tasks" else defaults.ALGORITHMS.get(name, {})
    if changed:
        told = ", ".join(f"{field} = {value}" for field, value in changed.items())
        console.print(f"\nDefaults of the run that it changes: {told}", highlight=False, markup=False)
    if kind == "tasks" and (path := _path(name)):
        console.print(f"\npath: {path}", highlight=False, markup=False)


def _path(task: str) -> str | None:
    """How the task's model is trained here. None without the task's data, for its examples decide."""
    from pagefl.core.errors import UserError
    from pagefl.experiments import spec as specs
    from pagefl.runtime import halves
    from pagefl.runtime.simulation import one_numeric_mode

    try:
        spec = specs.resolve({"task": task})
        made = spec.make_task()
        examples = made.data.train
    except UserError:
        return None
    with one_numeric_mode():
        return halves.start(made.fresh_module(spec.seed), spec.make_algorithm(), spec, examples).model.how


def _show_settings(wanted: str | None) -> None:
    from pagefl.core.errors import UserError
    from pagefl.experiments import describe

    found = describe.every()
    if wanted is not None:
        found = {
            title: [s for s in own if wanted in (s.name, s.name.partition(".")[2])]
            for title, own in found.items()
        }
        if not any(found.values()):
            raise UserError(
                f"show settings {wanted}: there is no such setting; `pagefl show settings` lists all"
            )
    for title, settings in found.items():
        if settings:
            console.print(Text(title, style="bold"))
            _print(settings)


def _print(settings: "list[Setting]") -> None:
    table = Table("setting", "type", "default", "range", "meaning", box=None)
    for setting in settings:
        table.add_row(*map(Text, setting))
    console.print(table)


def _catalogue() -> dict[str, dict[str, Callable[..., object]]]:
    from pagefl.algorithms import ALGORITHMS
    from pagefl.experiments.defaults import NICKNAMES
    from pagefl.experiments.tasks import BUILDERS
    from pagefl.game.players import PLAYERS

    nicknames: dict[str, Callable[..., object]] = {
        name: ALGORITHMS[meaning["algorithm"]] if "personal" in meaning else PLAYERS[meaning["players"]]
        for name, meaning in NICKNAMES.items()
    }
    return {"algorithms": {**ALGORITHMS, **nicknames}, "players": {**PLAYERS}, "tasks": {**BUILDERS}}
