"""A run as people use it in notebooks: it draws itself, and shows its progress."""

import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from pagefl.core.errors import UserError
from pagefl.runtime import numbers, run
from pagefl.runtime.record import Record

from . import charts
from .charts import Shown
from .palette import COLOURS
from .words import decimal, duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Kind = Literal["accuracy", "plane", "moves"]
KINDS = ("accuracy", "plane", "moves")
TABLE = {
    "global_accuracy": "global accuracy",
    "local_accuracy": "local accuracy",
    "local_worst10": "worst tenth",
    "personal_accuracy": "personal accuracy",
}
SECONDS = 0.3  # between two updates of the progress
# Follows the notebook's own colours, light or dark.
STYLE = (
    ".pagefl{--edge:color-mix(in srgb,currentColor 15%,transparent);--dim:currentColor;--card:transparent;"
    "max-width:560px}.pagefl .chart{height:230px}"
)


@dataclass(repr=False)
class Run(run.Run):
    """The records and models of a run, finished or not."""

    own: Any = None  # the user's own task, algorithm and players, for `pagefl.resume`

    def plot(self, kind: Kind = "accuracy", axes: "Axes | None" = None, *, label: str = "") -> "Axes":
        """Draw with matplotlib, on new axes or on these. Returns the axes.

        "accuracy": global, local and personal accuracy by round. "plane": the way through the plane of global
        and local accuracy. "moves": what clients chose, lr times epochs. `label` is for comparing runs: with
        one, "accuracy" shows global (solid) and local accuracy (dashed) in one colour.
        """
        from . import plots

        if kind not in KINDS:
            raise UserError(f"plot: kind = {kind!r}; expected one of {', '.join(KINDS)}")
        return plots.draw(kind, self.history, axes, label)

    def _repr_html_(self) -> str:
        """A small table and a picture. Names are the user's own text, so everything is escaped."""
        if not self.rounds:
            return super()._repr_html_()
        rounds = numbers.of_rounds(self.rounds, self.name or "run")
        columns = charts.columns(rounds, 1)
        drawn = next(charts.of_run(Shown(self.name, "run", COLOURS[0], columns)), None)
        picture = f'<div class="chart">{drawn.body}</div>' if drawn else ""
        lines = [
            f"<tr><th>{label}</th><td>{decimal(rounds[-1][name])}</td></tr>"
            for name, label in TABLE.items()
            if rounds[-1][name] is not None
        ]
        legend = " ".join(
            f'<span style="color:{colour}">━ {escape(label)}</span>'
            for _, label, colour, _ in (drawn.switches if drawn else ())
        )
        facts = [self._facts[0], *([] if self.directory is None else [str(self.directory)])]
        head = f"<b>Run</b> {escape(self.name)}: {escape(', '.join(facts))}"
        css = (Path(__file__).parent / "chart.css").read_text()
        return (
            f"<style>{STYLE}.pagefl{{{css}}}</style>{head}<table>{''.join(lines)}</table>"
            f'<div class="pagefl">{legend}{picture}</div>'
        )


def in_notebook() -> bool:
    """Whether this is a cell of Jupyter, which can show something that changes."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


class CellProgress:
    """Progress below a notebook's cell: one line that changes."""

    def __init__(self, rounds: int) -> None:
        from IPython.display import display

        self.rounds, self.began, self.shown = rounds, monotonic(), 0.0
        self.first: int | None = None
        self.handle = display(self._bundle("starting …"), raw=True, display_id=True)

    def observe(self, record: Record) -> None:
        now, round = monotonic(), record["round"]
        if self.first is None:
            self.first = round - 1
        if now - self.shown < SECONDS and round < self.rounds:
            return
        self.shown = now
        left = (now - self.began) / max(round - self.first, 1) * (self.rounds - round)
        parts = [f"round {round} of {self.rounds}"]
        parts += [f"{side} {decimal(record.get(f'{side}_accuracy'))}" for side in ("global", "local")]
        parts += [f"{duration(left)} left"] if round < self.rounds else []
        self.handle.update(self._bundle(", ".join(parts), round), raw=True)

    def _bundle(self, text: str, done: int = 0) -> dict[str, str]:
        bar = f'<progress value="{done}" max="{self.rounds}"></progress> {escape(text)}'
        return {"text/plain": text, "text/html": bar}
