"""`pagefl list, show`: what there is, its settings and where it comes from."""

import sys
from collections.abc import Callable
from inspect import cleandoc
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from .console import console


def list_(kind: Annotated[str, typer.Argument(help="algorithms, players or tasks")]) -> None:
    """What there is."""
    table = Table("name", "what", box=None)
    for name, about in _catalogue(kind).items():
        table.add_row(name, (about.__doc__ or "").strip().split("\n")[0])
    console.print(table)


def show(name: Annotated[str, typer.Argument(help="a task, an algorithm or players")]) -> None:
    """Its settings and where it comes from."""
    from pagefl.core.errors import UserError
    from pagefl.experiments import settings as paper
    from pagefl.experiments.spec import own_settings

    kinds = {kind: _catalogue(kind) for kind in ("tasks", "algorithms", "players")}
    kind = next((kind for kind, entries in kinds.items() if name in entries), None)
    if kind is None:
        valid = dict.fromkeys(entry for entries in kinds.values() for entry in entries)
        raise UserError(f"show {name}: there is no such task, algorithm or players; expected one of {', '.join(valid)}")
    builder = kinds[kind][name]
    source = None if kind == "tasks" else sys.modules[builder.__module__].__doc__
    console.print(
        Text(name, style="bold"), *map(cleandoc, filter(None, (source, builder.__doc__))), sep="\n\n", highlight=False
    )
    table = Table("setting", "default", box=None)
    prefix = "players" if name in kinds["players"] else kind.removesuffix("s")
    for field, info in own_settings(builder, skip=("seed",)).model_fields.items():
        table.add_row(f"{prefix}.{field}", str(info.default))
    for field, value in {**paper.TASKS, **paper.ALGORITHMS}.get(name, {}).items():
        table.add_row(field, str(value))
    console.print(table)


def _catalogue(kind: str) -> dict[str, Callable[..., object]]:
    from pagefl.algorithms import ALGORITHMS
    from pagefl.core.errors import UserError
    from pagefl.experiments.settings import NICKNAMES
    from pagefl.experiments.tasks import TASKS
    from pagefl.game.players import PLAYERS

    nicknames = {name: PLAYERS[meaning["players"]] for name, meaning in NICKNAMES.items()}
    catalogues: dict[str, dict[str, Callable[..., object]]] = {
        "algorithms": {**ALGORITHMS, **nicknames},
        "players": {**PLAYERS},
        "tasks": {**TASKS},
    }
    if kind not in catalogues:
        raise UserError(f"list {kind}: expected {' or '.join(catalogues)}")
    return catalogues[kind]
