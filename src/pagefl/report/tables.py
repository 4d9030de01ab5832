"""Tables of many runs, with the published numbers beside ours: Markdown, LaTeX and CSV from the same cells."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

import pandas as pd

from pagefl.experiments import statistics, sweep
from pagefl.experiments.paper import METHODS, Block, Published
from pagefl.experiments.statistics import Difference
from pagefl.experiments.sweep import Found

SEEN = {  # the column of statistics.by_run, and what a reader calls it
    "global_last": "global, last",
    "global_best": "global, best",
    "local_last": "local, last",
    "local_best": "local, best",
    "local_accuracy_before": "local before training",
    "local_std": "std over clients",
    "local_worst10": "worst tenth",
}


@dataclass(frozen=True)
class Table:
    title: str
    columns: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        lines = [" | ".join(self.columns), "|".join(["---"] * len(self.columns)), *(" | ".join(row) for row in self.rows)]
        return "\n".join([f"## {self.title}", "", *(f"| {line} |" for line in lines), ""])

    def latex(self) -> str:
        body = " \\\\\n".join(" & ".join(map(_tex, row)) for row in self.rows)
        head = " & ".join(map(_tex, self.columns))
        shape = "l" + "r" * (len(self.columns) - 1)
        return (
            f"% {self.title}\n\\begin{{tabular}}{{{shape}}}\n\\hline\n{head} \\\\\n\\hline\n{body} \\\\\n\\hline\n"
            f"\\end{{tabular}}\n"
        )

    def csv(self) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([["table", *self.columns], *([self.title, *row] for row in self.rows)])
        return text.getvalue()


def of_block(block: Block, found: Sequence[Found]) -> list[Table]:
    """What is there of a block's runs with the paper's numbers beside it, and what can be said of the differences."""
    frames = {}
    for name, specs in block.rows.items():
        if runs := sweep.of(specs, found):
            frames[name] = statistics.by_run([(one.spec, one.rounds) for one in runs]).assign(method=name)
    frame = pd.concat(frames.values()) if frames else pd.DataFrame()
    made = of_frame(block.title, frame) if frames else Table(block.title, _columns(), [])
    ours = {row[0]: row for row in made.rows}
    rows = [ours.get(name, [name, *["–"] * (len(made.columns) - 1)]) for name in block.rows]
    made = replace(made, rows=rows)
    if block.published:
        beside = [[*row, *_beside(block.published.get(row[0]))] for row in rows]
        made = replace(made, columns=[*made.columns, "paper: global", "paper: local", "paper: round"], rows=beside)
    return [made, differences(block.title, frame)] if len(frames) > 1 else [made]


def of_frame(title: str, frame: pd.DataFrame) -> Table:
    """A row per method, mean and spread over seeds in per cent."""
    rows = []
    for name, own in frame.groupby("method", sort=False):
        converged = own[f"{METHODS.get(str(name), 'global')}_converged"]
        rows.append([str(name), *(_per_cent(own[column]) for column in SEEN), _rounds(converged), str(len(own))])
    return Table(title, _columns(), rows)


def differences(table: str, frame: pd.DataFrame) -> Table:
    """Each method against the best of the others, seed by seed, in points."""
    rows = []
    for method in map(str, frame["method"].unique()):
        cells = []
        for metric in ("global_last", "local_last"):
            other = statistics.best_other(frame, method, metric)
            cells.append("–" if other is None else versus(other, statistics.difference(frame, method, other, metric)))
        rows.append([method, *cells])
    return Table(f"{table}: against the best other method, points and 95 % interval", ["", "global, last", "local, last"], rows)


def versus(other: str, found: Difference) -> str:
    if not isfinite(found.low):
        return f"{100 * found.mean:+.2f} to {other} (one seed shows nothing)"
    interval = f"[{100 * found.low:+.2f}, {100 * found.high:+.2f}]"
    return f"{100 * found.mean:+.2f} to {other} {interval}: {found.verdict}"


def _columns() -> list[str]:
    return ["", *SEEN.values(), "converged, round", "seeds"]


def _per_cent(values: "pd.Series[float]") -> str:
    spread = f" ± {100 * values.std():.2f}" if len(values) > 1 else ""
    return f"{100 * values.mean():.2f}{spread}"


def _rounds(values: "pd.Series[float]") -> str:
    return f"{values.mean():.0f}" + (f" ± {values.std():.0f}" if len(values) > 1 else "")


def _beside(published: Published | None) -> list[str]:
    if published is None:
        return ["–"] * 3
    means = ((published.global_mean, published.global_std), (published.local_mean, published.local_std))
    cells = [f"{mean:.2f}" + (f" ± {std:.2f}" if std is not None else "") for mean, std in means]
    return [*cells, str(published.converged or "–")]


def _tex(cell: str) -> str:
    for plain, tex in (("\\", r"\textbackslash "), ("±", r"$\pm$"), ("–", "--"), ("%", r"\%"), ("_", r"\_"), ("&", r"\&")):
        cell = cell.replace(plain, tex)
    return cell
