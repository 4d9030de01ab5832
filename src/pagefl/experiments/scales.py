"""Tables at three scales: from an entry of paper.TABLES to the specs of its runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pagefl.core.errors import UserError

from .defaults import LAPTOP_EFFORT
from .paper import TABLES, Columns, Figure, Panel, Published
from .spec import Raw, RunSpec, put, resolve
from .tasks import TASKS

Scale = Literal["smoke", "laptop", "paper"]


@dataclass(frozen=True)
class Block:
    """A panel of a table with its runs."""

    title: str
    task: str
    rows: Mapping[str, list[RunSpec]]  # one run per seed
    published: Mapping[str, Published]
    shows: tuple[Columns, ...] = Panel.shows


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    blocks: tuple[Block, ...]
    figure: Figure | None

    @property
    def specs(self) -> list[RunSpec]:
        return [spec for block in self.blocks for row in block.rows.values() for spec in row]


def experiment(name: str, scale: Scale) -> Experiment:
    if name not in TABLES:
        raise UserError(f"reproduce {name}: expected one of {', '.join(TABLES)}")
    table = TABLES[name]
    return Experiment(name, table.title, tuple(_block(panel, scale) for panel in table.panels), table.figure)


def _block(panel: Panel, scale: Scale) -> Block:
    task = panel.laptop if panel.laptop and scale == "laptop" else panel.task
    rows = {label: _runs(task, row.settings, scale) for label, row in panel.rows.items()}
    published = {
        label: row.published for label, row in panel.rows.items() if row.published and task == panel.task
    }
    return Block(f"{task}, {panel.about}" if panel.about else task, task, rows, published, panel.shows)


def _runs(task: str, settings: Mapping[str, Any], scale: Scale) -> list[RunSpec]:
    """One run per seed, at this scale."""
    small = TASKS[task].small
    seeds: tuple[int, ...] = (0, 1, 2)
    smaller: dict[str, Any] = {}
    if scale == "smoke":
        seeds = (0, 1)
        smaller = {"epochs": 1, "rounds": 2, "task.clients": 4}
        if small and "per_client" in small.task:
            smaller["task.per_client"] = 40
    elif scale == "laptop" and small:
        seeds = (0,)
        smaller = {**small.laptop, **LAPTOP_EFFORT.get(settings["algorithm"], {})}
    elif scale == "laptop" and settings.get("task.clients", 0) > 100:
        seeds = (0,)
    raw: Raw = {"task": f"{task}-small" if small and scale != "paper" else task}
    for name, value in {**settings, **smaller}.items():
        put(raw, name, value)
    raw["clients_every"] = resolve(raw).rounds  # record the clients in the last round only
    return [resolve({**raw, "seed": seed}) for seed in seeds]
