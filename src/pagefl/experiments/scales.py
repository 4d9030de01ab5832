"""Tables at three scales: from an entry of paper.TABLES to the specs of its runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pagefl.algorithms import ALGORITHMS
from pagefl.core.errors import UserError

from .defaults import NICKNAMES, ONE_EPOCH
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
    blocks = [
        _block(panel, task, scale)
        for panel in table.panels
        for task in (panel.laptop if panel.laptop and scale == "laptop" else (panel.task,))
    ]
    return Experiment(name, table.title, tuple(blocks), table.figure)


def _block(panel: Panel, task: str, scale: Scale) -> Block:
    wanted = {**panel.rows, **(panel.beside if scale == "laptop" else {})}
    able = {label: row for label, row in wanted.items() if _fits(row.settings["algorithm"], task)}
    rows = {label: _runs(task, row.settings, scale, panel.seeds) for label, row in able.items()}
    published = {label: row.published for label, row in able.items() if row.published}
    title = task if task == panel.task else f"{task} (paper: {panel.task})"
    return Block(f"{title}, {panel.about}" if panel.about else title, task, rows, published, panel.shows)


def _fits(method: str, task: str) -> bool:
    """A logistic model has no body to share."""
    algorithm = NICKNAMES.get(method, {}).get("algorithm", method)
    return not (TASKS[task].logistic and ALGORITHMS[algorithm].needs_body)


def _runs(
    task: str, settings: Mapping[str, Any], scale: Scale, wanted: tuple[int, ...] = ()
) -> list[RunSpec]:
    """One run per seed, at this scale. `wanted`: the seeds, if they are others than the task's."""
    small = TASKS[task].small
    seeds = wanted or (0, 1, 2)
    smaller: dict[str, Any] = {}
    if scale == "smoke":
        seeds = (0, 1)
        smaller = {"epochs": 1, "rounds": 2, "task.clients": 4, "judge_every": 1}
        if small and "per_client" in small.task:
            smaller["task.per_client"] = 40
    elif scale == "laptop":
        seeds = wanted or ((0,) if settings.get("task.clients", 0) > 100 else TASKS[task].seeds)
        if TASKS[task].run["epochs"] == 1:
            usual = ONE_EPOCH.get(settings["algorithm"], {})
            smaller = {name: value for name, value in usual.items() if name not in settings}
        often = max(1, int(settings.get("rounds", TASKS[task].run["rounds"])) // 30)
        smaller["judge_every"] = settings.get("judge_every", often)
    raw: Raw = {"task": f"{task}-small" if small and scale == "smoke" else task}
    for name, value in {**settings, **smaller}.items():
        put(raw, name, value)
    raw.setdefault("clients_every", resolve(raw).rounds)  # record the clients in the last round only
    return [resolve({**raw, "seed": seed}) for seed in seeds]
