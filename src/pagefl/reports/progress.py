"""Progress of a run on stderr: a bar on a terminal, otherwise a line every few seconds, and a final table."""

import sys
from collections import deque
from time import monotonic
from types import TracebackType

from rich import box, progress
from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.table import Table

from pagefl.core.errors import printable
from pagefl.experiments.sweep import Progress as Sweep
from pagefl.runtime import numbers
from pagefl.runtime.record import Record

from .words import best, decimal, duration

BAR_SECONDS, LINE_SECONDS = 1 / 8, 5.0  # between two updates, on a terminal and elsewhere
SWEEP_LINE_SECONDS = 30.0
LOOKS = 40  # the rate is measured over the last updates only: compiling and other load are soon forgotten


class Progress:
    """Shows the progress of one run.

    It has no thread of its own. The run forks its workers, and a fork must not copy a lock that a thread
    holds.
    """

    def __init__(self, title: str, rounds: int, start: int = 0) -> None:
        self.title, self.rounds, self.start = title, rounds, start
        self.console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self.bar = _bar(self.console) if sys.stderr.isatty() and self.console.is_interactive else None
        self.looks: deque[tuple[float, int]] = deque(maxlen=LOOKS)
        self.judged: Record = {}  # the last round whose accuracies are known
        self.unseen: Record | None = None

    def __enter__(self) -> "Progress":
        self.say(self.title)
        if self.bar:
            self.bar.add_task("", total=self.rounds, completed=self.start)
            self.bar.start()
            self.bar.refresh()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.unseen:  # the run was stopped before its last round
            self._show(self.unseen, monotonic())
        if self.bar:
            self.bar.stop()

    def observe(self, record: Record) -> None:
        now = monotonic()
        if not self.looks:
            self.looks.append((now - (record.get("seconds") or 0), record["round"] - 1))
        elif (
            now - self.looks[-1][0] < (BAR_SECONDS if self.bar else LINE_SECONDS)
            and record["round"] < self.rounds
        ):
            self.unseen = record
            return
        self._show(record, now)

    def say(self, message: str) -> None:
        message = printable(message)  # it may quote a node, or a name from someone else's run directory
        if self.bar:
            self.console.print(message)  # rich prints it above the bar
        else:
            print(message, file=sys.stderr, flush=True)

    def _show(self, record: Record, now: float) -> None:
        self.unseen = None
        self.looks.append((now, record["round"]))
        line = self._line(record)
        if self.bar:
            self.bar.update(self.bar.task_ids[0], completed=record["round"], description=line)
            self.bar.refresh()
        else:
            self.say(line)

    def _line(self, record: Record) -> str:
        if record.get("judged", True) or not self.judged:
            self.judged = record
        (then, first), (now, last) = self.looks[0], self.looks[-1]
        pace = (now - then) / max(last - first, 1)
        parts = [
            f"round {record['round']:>{len(str(self.rounds))}}/{self.rounds}",
            f"global {decimal(self.judged['global_accuracy'])}",
            f"local {decimal(self.judged['local_accuracy'])}",
            f"{pace:.1f} s/round" if pace > 1 else f"{1 / max(pace, 1e-6):.1f} rounds/s",
        ]
        if left := self.rounds - record["round"]:
            parts.append(f"{duration(left * pace)} left")
        return "  ".join(parts)


class _Accuracies(RegexHighlighter):
    highlights = (r"(?:global|local) (?P<bold>\S+)",)


def _bar(console: Console) -> progress.Progress:
    line = progress.TextColumn("{task.description}", markup=False, highlighter=_Accuracies())
    # stdout is not redirected: it may carry the run's JSON to another program.
    return progress.Progress(
        progress.BarColumn(bar_width=None, complete_style="cyan"),
        line,
        console=console,
        auto_refresh=False,
        expand=True,
        redirect_stdout=False,
    )


def summary(run_rounds: list[Record], console: Console) -> None:
    if not run_rounds:
        console.print("no rounds yet")
        return
    rounds = numbers.of_rounds(run_rounds, "the run")
    last = rounds[-1]
    seconds = sum(record["seconds"] or 0 for record in rounds)
    table = Table("", f"round {last['round']}", "best", box=box.SIMPLE_HEAD, header_style="bold")
    for side in ("global", "local"):
        table.add_row(f"{side} accuracy", decimal(last[f"{side}_accuracy"]), best(rounds, f"{side}_accuracy"))
    table.add_row("  before training", decimal(last["local_accuracy_before"]))
    table.add_row("  worst tenth", decimal(last["local_worst10"]))
    table.add_row("  std over clients", decimal(last["local_std"]))
    if last["personal_accuracy"] is not None:
        table.add_row("personal accuracy", decimal(last["personal_accuracy"]), "after the personal step")
        table.add_row("  worst tenth", decimal(last["personal_worst10"]))
    if last["epsilon"] is not None:
        table.add_row("epsilon spent", decimal(last["epsilon"]))
    table.add_row("time", duration(seconds), f"{seconds / len(rounds):.3g} s per round")
    console.print(table)


class SweepProgress:
    """Shows the progress of a sweep: a bar over all rounds on a terminal, otherwise a line now and then."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self.bar = _bar(self.console) if sys.stderr.isatty() and self.console.is_interactive else None
        self.began, self.already, self.told = monotonic(), -1, -1e9

    def __enter__(self) -> "SweepProgress":
        if self.bar:
            self.bar.add_task("", total=None)
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def observe(self, sweep: Sweep) -> None:
        now = monotonic()
        if self.already < 0:
            self.already = sweep.rounds_done
        parts = [f"{sweep.finished}/{sweep.runs} runs", f"{sweep.rounds_done}/{sweep.rounds} rounds"]
        if done := sweep.rounds_done - self.already:
            parts.append(f"{duration((now - self.began) / done * (sweep.rounds - sweep.rounds_done))} left")
        if sweep.failed:
            parts.append(f"{len(sweep.failed)} failed")
        line = "  ".join(parts)
        if self.bar:
            self.bar.update(
                self.bar.task_ids[0], completed=sweep.rounds_done, total=sweep.rounds, description=line
            )
            self.bar.refresh()
        elif now - self.told >= SWEEP_LINE_SECONDS or sweep.finished == sweep.runs:
            self.told = now
            print(line, file=sys.stderr, flush=True)
