"""Tables of many runs, with the published numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isnan
from typing import Any

import pandas as pd

from pagefl.experiments import statistics, sweep
from pagefl.experiments.paper import UNDER, Columns, Published
from pagefl.experiments.scales import Block
from pagefl.experiments.statistics import LOCAL, SIDES, Difference
from pagefl.experiments.sweep import Found

from . import time_tables
from .table import DASH, Table, gained, spread

ACCURACY = {  # metric of statistics.summary, and its label
    "global_last": "global, last",
    "global_best": "global, best",
    "local_last": "local, last",
    "local_best": "local, best",
    "personal_accuracy": "personal",
}
Row = Mapping[str, Any]  # a row of statistics.summary


def of_summary(summary: pd.DataFrame) -> list[Table]:
    """All tables of each data setting. Differences need two methods to compare."""
    made = []
    for data, own in summary.groupby("data", sort=False):
        made += [
            table(str(data), own)
            for shows, table in TABLES.items()
            if shows != "attacks" and (shows != "differences" or len(own) > 1)
        ]
    return made


def of_block(block: Block, found: Sequence[Found]) -> list[Table]:
    """Tables of a block's finished runs, with the paper's numbers."""
    if "time" in block.shows:
        return time_tables.of_block(block, found)
    frames = []
    for name, specs in block.rows.items():
        if runs := sweep.of(specs, found):
            frames.append(statistics.by_run([(one.spec, one.rounds) for one in runs]).assign(method=name))
    summary = statistics.summary(pd.concat(frames)) if frames else pd.DataFrame({"method": []})
    made = []
    for shows in block.shows:
        if shows == "differences":
            made += [differences(block.title, summary)] if len(frames) > 1 else []
            continue
        if shows == "attacks":
            made += [attacks(block.title, summary, side) for side in SIDES]
            continue
        table = TABLES[shows](block.title, summary)
        ours = {row[0]: row for row in table.rows}
        rows = [ours.get(name, [name, *[DASH] * (len(table.columns) - 1)]) for name in block.rows]
        made.append(_with_published(replace(table, rows=rows), shows, block.published))
    return made


def accuracy(title: str, summary: pd.DataFrame) -> Table:
    """Accuracy in per cent: mean and standard deviation over seeds."""
    unfinished = "unfinished" in summary and bool(summary["unfinished"].any())
    rows = []
    for row in _rows(summary):
        cells = [
            *_per_cent(row, ACCURACY),
            str(row["seeds"]),
            *([str(row["unfinished"])] if unfinished else []),
        ]
        rows.append([row["method"], *cells])
    return Table(title, ["", *ACCURACY.values(), "seeds", *(["unfinished"] if unfinished else [])], rows)


def clients(title: str, summary: pd.DataFrame) -> Table:
    rows = [[row["method"], *_per_cent(row, LOCAL)] for row in _rows(summary)]
    return Table(f"{title}: clients, last round", ["", *LOCAL.values()], rows)


def personal(title: str, summary: pd.DataFrame) -> Table:
    """What the personal step adds to local accuracy, and gradient evaluations in millions of examples."""
    rows = []
    for row in _rows(summary):
        gain = 100 * (row["personal_accuracy_mean"] - row["local_last_mean"])
        spent = [row[f"{name}_mean"] / 1e6 for name in ("gradients", "gradients_personal")]
        rows.append(
            [
                row["method"],
                *_per_cent(row, ["local_last", "personal_accuracy"]),
                DASH if isnan(gain) else f"{gain:+.2f}",
                *(DASH if isnan(value) else f"{value:.2f}" for value in spent),
            ]
        )
    columns = ["local, last", "personal", "gain", "gradients, training", "gradients, personal"]
    return Table(f"{title}: the personal step (gradients in millions of examples)", ["", *columns], rows)


def convergence(title: str, summary: pd.DataFrame) -> Table:
    """Convergence: the mean round over converged seeds, how many converged, and the accuracy they reached."""
    columns = [f"{side}: {what}" for side in SIDES for what in ("round", "seeds converged", "accuracy then")]
    rows = []
    for row in _rows(summary):
        cells = []
        for side in SIDES:
            cells.append(spread(row[f"{side}_converged_mean"], row[f"{side}_converged_std"], ".0f"))
            cells.append(f"{row[f'{side}_seeds_converged']} of {row['seeds']}")
            cells += _per_cent(row, [f"{side}_plateau"])
        rows.append([row["method"], *cells])
    return Table(f"{title}: convergence", ["", *columns], rows)


def differences(title: str, summary: pd.DataFrame) -> Table:
    """Each method against the best of the others, paired by seed, in percentage points."""
    rows = [[row["method"], *(_versus(row, side) for side in SIDES)] for row in _rows(summary)]
    return Table(
        f"{title}: against the best other method, points and 95 % interval",
        ["", "global, last", "local, last"],
        rows,
    )


def attacks(title: str, summary: pd.DataFrame, side: str = "global") -> Table:
    """A row for each defence and a column for each attack: one accuracy, and what the worst attack costs."""
    means = {row["method"]: 100 * row[f"{side}_last_mean"] for row in _rows(summary)}
    found: dict[str, dict[str, float]] = {}
    for label, mean in means.items():
        defence, _, attack = label.partition(UNDER)
        found.setdefault(defence, {})[attack] = mean
    names = list(dict.fromkeys(attack for own in found.values() for attack in own))
    rows = []
    for defence, own in found.items():
        worst = min(value for value in own.values())
        lost = f"{own['none'] - worst:.1f}" if "none" in own else DASH
        rows.append(
            [defence, *(f"{own[name]:.1f}" if name in own else DASH for name in names), f"{worst:.1f}", lost]
        )
    return Table(f"{title}: {side} accuracy under attack", ["", *names, "worst", "lost"], rows)


TABLES: dict[Columns, Callable[[str, pd.DataFrame], Table]] = {
    "accuracy": accuracy,
    "differences": differences,
    "clients": clients,
    "personal": personal,
    "convergence": convergence,
    "attacks": attacks,
}


def _rows(summary: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in summary.to_dict("records")]


def _versus(row: Row, side: str) -> str:
    other = row[f"{side}_against"]
    if pd.isna(other):
        return DASH
    numbers = (row[f"{side}_{name}"] for name in ("difference", "low", "high", "seeds_shared"))
    return gained(Difference(*numbers), f" vs {other}")


def _per_cent(row: Row, metrics: Sequence[str] | Mapping[str, str]) -> list[str]:
    return [spread(100 * row[f"{metric}_mean"], 100 * row[f"{metric}_std"], ".2f") for metric in metrics]


def _with_published(table: Table, shows: Columns, published: Mapping[str, Published]) -> Table:
    columns = PUBLISHED.get(shows, {}) if published else {}
    rows = []
    for row in table.rows:
        numbers = published.get(row[0])
        rows.append([*row, *(cell(numbers) if numbers else DASH for cell in columns.values())])
    return replace(table, columns=[*table.columns, *columns], rows=rows)


def _published_mean(mean: float | None, std: float | None) -> str:
    if mean is None:
        return DASH
    return f"{mean:.2f}" + (f" ± {std:.2f}" if std is not None else "")


# Columns that a table gets beside ours, and their cells.
PUBLISHED: dict[Columns, dict[str, Callable[[Published], str]]] = {
    "accuracy": {
        "published: global": lambda numbers: _published_mean(numbers.global_mean, numbers.global_std),
        "published: local": lambda numbers: _published_mean(numbers.local_mean, numbers.local_std),
    },
    "convergence": {
        "published: round": lambda numbers: (
            f"{numbers.converged} ({numbers.side})" if numbers.converged else DASH
        )
    },
}
