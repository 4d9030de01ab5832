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
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        lines = [" | ".join(self.columns), "|".join(["---"] * len(self.columns)), *(" | ".join(row) for row in self.rows)]
        return "\n".join(
            [f"## {self.title}", "", *(f"| {line} |" for line in lines), "", *(f"{note}\n" for note in self.notes)]
        )

    def latex(self) -> str:
        body = " \\\\\n".join(" & ".join(map(_tex, row)) for row in self.rows)
        head = " & ".join(map(_tex, self.columns))
        shape = "l" + "r" * (len(self.columns) - 1)
        return (
            f"% {self.title}\n\\begin{{tabular}}{{{shape}}}\n\\hline\n{head} \\\\\n\\hline\n{body} \\\\\n\\hline\n"
            f"\\end{{tabular}}\n{''.join(f'% {note}' + chr(10) for note in self.notes)}"
        )

    def csv(self) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([["table", *self.columns], *([self.title, *row] for row in self.rows)])
        return text.getvalue()


def of_block(block: Block, found: Sequence[Found]) -> Table:
    """What is there of a block's runs, and the paper's numbers beside it."""
    frames = {}
    for name, specs in block.rows.items():
        if runs := sweep.of(specs, found):
            frames[name] = statistics.by_run([(one.spec, one.rounds) for one in runs]).assign(method=name)
    made = of_frame(block.title, pd.concat(frames.values())) if frames else Table(block.title, _columns(), [])
    ours = {row[0]: row for row in made.rows}
    rows = [ours.get(name, [name, *["–"] * (len(made.columns) - 1)]) for name in block.rows]
    if not block.published:
        return replace(made, rows=rows)
    beside = [[*row, *_beside(block.published.get(row[0]))] for row in rows]
    return replace(made, columns=[*made.columns, "paper: global", "paper: local", "paper: round"], rows=beside)


def of_frame(title: str, frame: pd.DataFrame) -> Table:
    """A row per method, mean and spread over seeds in per cent."""
    rows = []
    for name, own in frame.groupby("method", sort=False):
        converged = own[f"{METHODS.get(str(name), 'global')}_converged"]
        rows.append([str(name), *(_per_cent(own[column]) for column in SEEN), _rounds(converged), str(len(own))])
    return Table(title, _columns(), rows, tuple(compare(frame)))


def _columns() -> list[str]:
    return ["", *SEEN.values(), "converged, round", "seeds"]


def compare(frame: pd.DataFrame) -> list[str]:
    """Each side's best method against the next one, over the same seeds."""
    notes = []
    for side in ("global", "local"):
        metric = f"{side}_last"
        best = str(frame.groupby("method", sort=False)[metric].mean().idxmax())
        if (other := statistics.best_other(frame, best, metric)) is not None:
            notes.append(f"{side}, last: {versus(best, other, statistics.difference(frame, best, other, metric))}")
    return notes


def versus(method: str, other: str, found: Difference) -> str:
    if not isfinite(found.low):
        return f"{method} against {other}: {100 * found.mean:+.2f} points from {found.seeds} seed, which shows nothing"
    interval = f"[{100 * found.low:+.2f}, {100 * found.high:+.2f}]"
    verdict = f"{method} {found.verdict}" if "show" not in found.verdict else found.verdict
    return f"{method} against {other}: {100 * found.mean:+.2f} points, 95 % {interval} over {found.seeds} seeds: {verdict}"


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
