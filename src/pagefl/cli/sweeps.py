"""`pagefl sweep, compare, reproduce`: many runs at once, and their statistics."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from . import bench
from .terminal import console, err

Jobs = Annotated[
    int,
    typer.Option(
        min=0, help="Runs side by side.", show_default="one per core; on a cluster, as many as have room"
    ),
]
Executor = Annotated[
    str,
    typer.Option(
        help="Where runs are executed: local (processes of this machine), ray (tasks of a Ray cluster) or "
        "slurm (jobs). On a cluster, --out must be a folder that all nodes share."
    ),
]
Address = Annotated[
    str | None,
    typer.Option(help="Of a running Ray cluster: auto or HOST:PORT.", show_default="a Ray of its own"),
]
Slurm = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="An option of sbatch, such as partition=short, time=120 (minutes) or mem=8GB. Repeatable.",
    ),
]


def sweep(
    file: Annotated[Path, typer.Argument(help="A spec with a table `sweep` of lists.")],
    out: Annotated[Path, typer.Option(help="Folder of the runs; finished ones are not run again.")] = Path(
        "sweep"
    ),
    jobs: Jobs = 0,
    executor: Executor = "local",
    address: Address = None,
    slurm: Slurm = None,
) -> None:
    """Run every combination of a grid of settings. Finished runs are not repeated."""
    from pagefl.comparing import compare
    from pagefl.experiments import spec as specs
    from pagefl.experiments import sweep
    from pagefl.reports import tables

    place = _place(executor, address, slurm)
    wanted = sweep.grid(specs.read(file))
    done = _run(wanted, out, jobs, place)
    if found := sweep.finished(wanted, out):
        _print_tables(tables.of_summary(compare([one.path for one in found], say=_say)))
    _end(done)


def compare(
    directories: Annotated[list[Path], typer.Argument(help="Run directories, or folders of them.")],
    json: Annotated[
        bool, typer.Option("--json", help="A list of objects on stdout, one per method and data setting.")
    ] = False,
    csv: Annotated[bool, typer.Option("--csv", help="The same rows as CSV.")] = False,
) -> None:
    """Compare methods: mean ± std over seeds in the last and the best round, and differences."""
    from pagefl.comparing import compare
    from pagefl.core.errors import UserError
    from pagefl.reports import tables

    if json and csv:
        raise UserError("--json --csv: choose one of the two")
    found = compare(directories, say=_say)
    if json:
        print(found.to_json(orient="records", double_precision=15))
    elif csv:
        print(found.to_csv(index=False), end="")
    else:
        _print_tables(tables.of_summary(found))


def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A table or figure: see `pagefl list tables`.")],
    scale: Annotated[str, typer.Option(help="smoke (seconds), laptop (hours) or paper (days)")] = "laptop",
    task: Annotated[str | None, typer.Option(help="Only this task, such as synthetic.")] = None,
    jobs: Jobs = 0,
    executor: Executor = "local",
    address: Address = None,
    slurm: Slurm = None,
    part: Annotated[
        str,
        typer.Option(help="Part of the runs, to share them between machines: 2/8 is the second of eight."),
    ] = "1/1",
    plan: Annotated[
        bool, typer.Option("--plan", help="Print what is missing and its estimated cost; run nothing.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder of tables, figures and runs.")] = Path("reproduced"),
) -> None:
    """Reproduce a table or figure of the paper. Started again, it continues where it stopped."""
    from pagefl.core.errors import UserError
    from pagefl.experiments import ledger, scales
    from pagefl.experiments import sweep as sweeps
    from pagefl.reports import reproduce as reports
    from pagefl.reports.words import duration

    if name == "table5":
        bench.table5(json=False, quick=scale == "smoke")
        return
    if scale not in ("smoke", "laptop", "paper"):
        raise UserError(f"--scale {scale}: expected smoke, laptop or paper")
    place = _place(executor, address, slurm)
    wanted = scales.experiment(name, cast(scales.Scale, scale))
    if task is not None:
        blocks = tuple(block for block in wanted.blocks if block.task == task)
        if not blocks:
            raise UserError(
                f"--task {task}: {name} has {', '.join(dict.fromkeys(block.task for block in wanted.blocks))}"
            )
        wanted = replace(wanted, blocks=blocks)
    wanted = reports.available(wanted, _say)
    runs, kept = out / "runs", out / ledger.NAME
    mine = wanted.specs[_part(part)]
    if plan or scale == "paper":
        costs = sweeps.cost(mine, runs, kept)
        for what, seconds in costs.items():
            err.print(f"{what}: about {duration(seconds)}")
        err.print(
            f"all that is missing: about {duration(sum(costs.values()))} on this machine, one run after "
            "the other"
        )
        if plan:
            return
    try:
        done = _run(mine, runs, jobs, place, kept)
    finally:
        made, written = reports.write(wanted, scale, out, runs)
        _print_tables(made)
        for path in written:
            _say(f"wrote {path}")
    _end(done)


def _part(text: str) -> slice:
    from pagefl.core.errors import UserError

    number, _, parts = text.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise UserError(f"--part {text}: expected K/N with K from 1 to N, such as 2/8")
    return slice(int(number) - 1, None, int(parts))


def _place(executor: str, address: str | None, slurm: list[str] | None) -> Any:
    """Checked before anything is run."""
    from pagefl.experiments.executors import Place, slurm_jobs

    return Place(executor, address, slurm_jobs.parsed(slurm or []))


def _run(wanted: list[Any], folder: Path, jobs: int, place: Any, kept: Path | None = None) -> Any:
    """Run what is missing."""
    from pagefl.experiments import sweep
    from pagefl.reports.progress import SweepProgress

    with SweepProgress() as shown:
        return sweep.run_missing(wanted, folder, jobs, shown.observe, kept, place)


def _end(done: Any) -> None:
    """Report the runs that have not finished."""
    for name, problem in done.failed.items():
        _say(f"failed: {name}: {problem}")
    if done.finished < done.runs:
        _say(
            f"{done.runs - done.finished} of {done.runs} runs are not finished; the same command goes on "
            "with them"
        )
        raise typer.Exit(1)


def _print_tables(made: list[Any]) -> None:
    """Print tables: formatted on a terminal, otherwise as Markdown."""
    for table in made:
        if console.is_terminal:
            console.print(table.terminal())
        else:
            print(table.markdown())


def _say(message: str) -> None:
    err.print(message, markup=False)
