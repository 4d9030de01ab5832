"""`pagefl sweep, compare, reproduce`: many runs at once, and what is said of them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from . import bench
from .console import err

Jobs = Annotated[int, typer.Option(min=0, help="Runs side by side.", show_default="one per core")]


def sweep(
    file: Annotated[Path, typer.Argument(help="A spec with a table `sweep` of lists.")],
    out: Annotated[Path, typer.Option(help="Where runs go, and are found again.")] = Path("sweep"),
    jobs: Jobs = 0,
) -> None:
    """Every combination of a grid of settings; what is there already is not run again."""
    from pagefl.experiments import spec as specs
    from pagefl.experiments import sweep

    wanted = sweep.grid(specs.read(file))
    _sweep(wanted, out, jobs)
    _compare([one.path for one in sweep.finished(wanted, out)])


def compare(directories: Annotated[list[Path], typer.Argument(help="Run directories, or folders of them.")]) -> None:
    """Mean ± std over seeds, last and best, and what can be said of the differences."""
    found = [
        path for given in directories for path in ([given] if (given / "spec.toml").exists() else sorted(given.glob("*/")))
    ]
    _compare(found)


def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help="table1 … table5, fig2 or fig3")],
    scale: Annotated[str, typer.Option(help="smoke (seconds), laptop (hours) or paper (days)")] = "laptop",
    task: Annotated[str | None, typer.Option(help="Of this task alone, such as synthetic.")] = None,
    jobs: Jobs = 0,
    part: Annotated[str, typer.Option(help="Of the runs, to share them between machines: 2/8 is the second of eight.")] = "1/1",
    plan: Annotated[bool, typer.Option("--plan", help="Say what is missing and what it will cost, and run nothing.")] = False,
    out: Annotated[Path, typer.Option(help="Where tables, figures and runs go.")] = Path("reproduced"),
) -> None:
    """A table or figure of the paper, with the published numbers beside ours. Started again, it goes on where it was."""
    from pagefl.core.errors import UserError
    from pagefl.experiments import paper
    from pagefl.experiments import sweep as sweeps
    from pagefl.report import reproduce as reports
    from pagefl.report.progress import duration

    if name == "table5":
        bench.table5(json=False, quick=scale == "smoke")
        return
    if scale not in ("smoke", "laptop", "paper"):
        raise UserError(f"--scale {scale}: valid is smoke, laptop or paper")
    wanted = paper.experiment(name, cast(paper.Scale, scale))
    if task is not None:
        blocks = tuple(block for block in wanted.blocks if block.title.split(",")[0] == task)
        if not blocks:
            raise UserError(
                f"--task {task}: {name} has {', '.join(dict.fromkeys(b.title.split(',')[0] for b in wanted.blocks))}"
            )
        wanted = paper.Experiment(wanted.name, wanted.title, blocks)
    wanted = reports.available(wanted, err.print)
    runs = out / "runs"
    mine = wanted.specs[_part(part)]
    if plan or scale == "paper":
        costs = sweeps.cost(mine, runs)
        for what, seconds in costs.items():
            err.print(f"{what}: about {duration(seconds)}")
        err.print(f"all that is missing: about {duration(sum(costs.values()))} on this machine, one run after the other")
        if plan:
            return
    _sweep(mine, runs, jobs, lambda: reports.write(wanted, scale, out, runs))


def _part(text: str) -> slice:
    from pagefl.core.errors import UserError

    number, _, parts = text.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise UserError(f"--part {text}: valid is K/N with K from 1 to N, such as 2/8")
    return slice(int(number) - 1, None, int(parts))


def _sweep(wanted: list[Any], folder: Path, jobs: int, write: Callable[[], list[Path]] = list) -> None:
    """Run what is missing, write down what has finished, and say what has not."""
    from pagefl.experiments import sweep
    from pagefl.report.progress import SweepProgress

    try:
        with SweepProgress() as shown:
            done = sweep.run_missing(wanted, folder, jobs or len(os.sched_getaffinity(0)), shown.observe)
    finally:
        for path in write():
            err.print(f"wrote {path}")
    for name, problem in done.failed.items():
        err.print(f"failed: {name}: {problem}", markup=False)
    if done.finished < done.runs:
        err.print(f"{done.runs - done.finished} of {done.runs} runs are not finished; the same command goes on with them")
        raise typer.Exit(1)


def _compare(directories: list[Path]) -> None:
    from pagefl import api
    from pagefl.core.errors import UserError
    from pagefl.experiments import statistics
    from pagefl.report import tables
    from pagefl.runtime import record

    runs = [(api.spec_of(path), record.read(path)[0]) for path in directories]
    runs = [(spec, rounds) for spec, rounds in runs if rounds]
    if not runs:
        raise UserError(f"compare: {len(directories)} directories, none with a finished round; valid are those of runs")
    frame = statistics.by_run(runs)
    for task, own in frame.groupby("task", sort=False):
        print(tables.of_frame(str(task), own).markdown())
        if own["method"].nunique() > 1:
            print(tables.differences(str(task), own).markdown())
