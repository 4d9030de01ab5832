"""The command line."""

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Federated learning that balances the shared model and everybody's own."
)
bench = typer.Typer(no_args_is_help=True, help="Measure this machine: ratios of one run, alternating.")
data = typer.Typer(no_args_is_help=True, help="The original files of the data sets: nothing is ever downloaded.")
app.add_typer(bench, name="bench")
app.add_typer(data, name="data")
console, err = Console(), Console(stderr=True, soft_wrap=True, highlight=False)  # a path is never broken

Json = Annotated[bool, typer.Option("--json", help="A summary object on stdout.")]

Jobs = Annotated[int, typer.Option(min=0, help="Runs side by side.", show_default="one per core")]
TaskName = Annotated[str, typer.Argument(metavar="TASK", help="See `pagefl list tasks`.")]
Root = Annotated[Path | None, typer.Option(help="Where the files are.", show_default="PAGEFL_DATA, or else ./data")]
Track = Annotated[list[str] | None, typer.Option(help="tensorboard or mlflow, beside the run's own records. Repeatable.")]
Quick = Annotated[bool, typer.Option("--quick", help="At toy size, to see that it works.")]


@app.command()
def run(
    spec: Annotated[Path | None, typer.Argument(help="A TOML file of settings.", show_default=False)] = None,
    task: Annotated[str | None, typer.Option(help="See `pagefl list tasks`.")] = None,
    algorithm: Annotated[str | None, typer.Option(help="See `pagefl list algorithms`.")] = None,
    players: Annotated[str | None, typer.Option(help="Who chooses lr, epochs and weights: `pagefl list players`.")] = None,
    rounds: Annotated[str | None, typer.Option(metavar="INTEGER", help="Communication rounds.")] = None,
    clients: Annotated[str | None, typer.Option(metavar="INTEGER", help="Clients of the federation.")] = None,
    seed: Annotated[str | None, typer.Option(metavar="INTEGER", help="Of the data and of every random stream.")] = None,
    lr: Annotated[str | None, typer.Option(metavar="FLOAT", help="Learning rate of local SGD.")] = None,
    epochs: Annotated[str | None, typer.Option(metavar="INTEGER", help="Local epochs in a round.")] = None,
    participation: Annotated[str | None, typer.Option(metavar="SHARE", help="Of the clients, that train in a round.")] = None,
    workers: Annotated[str | None, typer.Option(metavar="INTEGER", help="Processes; change speed, never results.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Any setting, such as algorithm.mu=0.01. Repeatable.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's directory.", show_default="runs/TASK-ALGORITHM-sSEED")] = None,
    track: Track = None,
    json: Json = False,
) -> None:
    """Run an algorithm on a task: progress on stderr, a directory with records, checkpoint and report.

    Options go before what the file says, and --set before options.
    """
    from pagefl import api
    from pagefl.experiments import spec as specs

    raw = {} if spec is None else specs.read(spec)
    options = {
        "task": task,
        "algorithm": algorithm,
        "players": players,
        "task.clients": clients,
        "rounds": rounds,
        "seed": seed,
        "lr": lr,
        "epochs": epochs,
        "participation": participation,
        "workers": workers,
    }
    for name, value in options.items():  # as strings: the spec checks them all and says what is wrong
        if value is not None:
            specs.override(raw, f"{name}={value}")
    for assignment in set_ or []:
        specs.override(raw, assignment)
    resolved = specs.resolve(raw)
    out = out or _free_directory(f"{resolved.task['name']}-{resolved.label}-s{resolved.seed}")
    _follow(resolved, out, json, track, lambda **watch: api.launch(resolved, out=out, **watch))


@app.command()
def resume(
    directory: Path,
    rounds: Annotated[str | None, typer.Option(metavar="INTEGER", help="Go on to this round instead of the last.")] = None,
    track: Track = None,
    json: Json = False,
) -> None:
    """Go on from the last checkpoint; the result is that of a run that was never interrupted."""
    from pagefl import api

    spec = api.spec_of(directory, rounds=rounds)
    _follow(spec, directory, json, track, lambda **watch: api.resume(directory, rounds=spec.rounds, **watch))


@app.command()
def report(
    directories: list[Path],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
) -> None:
    """One interactive page for one or several runs."""
    from pagefl import api

    api.report(directories, out)
    err.print(f"report: {out}")


@app.command()
def bias(directory: Path, ratio: Annotated[str, typer.Argument(help="server:clients, such as 10:1")]) -> None:
    """Tip a running run: from its next round on, the two sides' rewards count by this ratio."""
    from pagefl import api

    err.print(f"bias {api.tip(directory, ratio)} from the next round of {directory}")


@app.command()
def verify(
    directory: Path,
    horizon: Annotated[int, typer.Option(min=1, help="Rounds that each replay lasts.")] = 20,
    clients: Annotated[int, typer.Option(min=1, help="How many clients are tried.")] = 5,
    random: Annotated[int, typer.Option(min=0, help="Random deviations of each, beside a grid.")] = 4,
    json: Json = False,
) -> None:
    """The equilibrium certificate: the most that any one player gains by one other move while the others keep theirs."""
    from pagefl import api
    from pagefl.game.certificate import Trial
    from pagefl.report import certificate

    result = api.verify(directory, Trial(horizon=horizon, clients=clients, random=random), say=err.print)
    figure = certificate.write(directory, result)
    _print(result, certificate.table(result), json)
    err.print(f"epsilon: clients {result['epsilon_clients']:.4f}, server {result['epsilon_server']:.4f}; figure: {figure}")


@app.command(name="list")
def list_(kind: Annotated[str, typer.Argument(help="algorithms, players or tasks")]) -> None:
    """What there is."""
    table = Table("name", "what", box=None)
    for name, about in _catalogue(kind).items():
        table.add_row(name, (about.__doc__ or "").strip().split("\n")[0])
    console.print(table)


@app.command(name="show")
def show_(name: Annotated[str, typer.Argument(help="a task, an algorithm or players")]) -> None:
    """Its settings and where it comes from."""
    from pagefl.core.errors import UserError
    from pagefl.experiments import settings as paper
    from pagefl.experiments.spec import own_settings

    kinds = {kind: _catalogue(kind) for kind in ("tasks", "algorithms", "players")}
    kind = next((kind for kind, entries in kinds.items() if name in entries), None)
    if kind is None:
        valid = dict.fromkeys(entry for entries in kinds.values() for entry in entries)
        raise UserError(f"show {name}: there is no such task, algorithm or players; valid is {', '.join(valid)}")
    builder = kinds[kind][name]
    source = None if kind == "tasks" else sys.modules[builder.__module__].__doc__
    console.print(f"[bold]{name}[/]", *map(cleandoc, filter(None, (source, builder.__doc__))), sep="\n\n", highlight=False)
    table = Table("setting", "default", box=None)
    prefix = "players" if name in kinds["players"] else kind.removesuffix("s")
    for field, info in own_settings(builder, skip=("seed",)).model_fields.items():
        table.add_row(f"{prefix}.{field}", str(info.default))
    for field, value in {**paper.TASKS, **paper.ALGORITHMS}.get(name, {}).items():
        table.add_row(field, str(value))
    console.print(table)


@app.command()
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


@app.command()
def compare(directories: Annotated[list[Path], typer.Argument(help="Run directories, or folders of them.")]) -> None:
    """Mean ± std over seeds, last and best, and what can be said of the differences."""
    found = [
        path for given in directories for path in ([given] if (given / "spec.toml").exists() else sorted(given.glob("*/")))
    ]
    _compare(found)


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help="table1 … table5, fig2 or fig3")],
    scale: Annotated[str, typer.Option(help="smoke (seconds), laptop (an hour or two) or paper (days)")] = "laptop",
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
        table5(json=False, quick=scale == "smoke")
        return
    if scale not in ("smoke", "laptop", "paper"):
        raise UserError(f"--scale {scale}: valid is smoke, laptop or paper")
    wanted = paper.experiment(name, scale)
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


@data.command()
def check(task: TaskName, root: Root = None) -> None:
    """Whether a task's files are there and are the originals; if not, what is missing and where it comes from."""
    original = _original(task)
    if original is None:
        err.print(f"{task} needs no files: its data are made up")
        return
    place, verified = original.check(root)
    err.print(f"{task}: {place}: {verified}")


@data.command()
def prepare(task: TaskName, root: Root = None) -> None:
    """Make the arrays that runs use, once; a run that finds none makes them first."""
    original = _original(task)
    if original is None:
        err.print(f"{task} needs no files: its data are made up")
        return
    arrays = original.load(root)
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
    err.print(f"{task}: {shapes}")
    if root is not None:
        err.print(f"runs find it with PAGEFL_DATA={root}")


@data.command()
def show(
    task: TaskName,
    clients: Annotated[int | None, typer.Option(min=1, help="Clients of the federation.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the run.")] = 0,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the task, such as delta=0.1. Repeatable.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The figure to write.")] = Path("partition.png"),
) -> None:
    """Who has what: a table of the clients' training data, and a figure of clients by classes."""
    import numpy as np

    from pagefl.data.partition import Partition, summary
    from pagefl.experiments import spec as specs
    from pagefl.report.partition import heat_map

    raw: dict[str, Any] = {"task": task}
    for assignment in [*([f"clients={clients}"] if clients else []), *(set_ or [])]:
        specs.override(raw, f"task.{assignment.removeprefix('task.')}")
    train = specs.make_task(specs.resolve(raw).task, seed).data.train
    labels = train.y.numpy()
    dealt = Partition(np.arange(len(labels)), train.starts.numpy())
    table = Table("of the clients", "samples", "classes", "largest share of a class", "effective classes", box=None)
    clients_by = summary(dealt, labels)
    for name, row in clients_by.quantile([0.0, 0.5, 1.0]).set_axis(["least", "median", "most"]).iterrows():
        table.add_row(str(name), *(f"{value:.4g}" for value in row))
    console.print(table)
    err.print(
        f"figure: {heat_map(dealt.class_counts(labels), out, f'{task}, seed {seed}: training data of {len(dealt)} clients')}"
    )


@bench.command()
def engine(json: Json = False, quick: Quick = False) -> None:
    """The engine against a plain per-client loop, on four workloads."""
    from pagefl.experiments import bench

    result = bench.engine(quick=quick, say=err.print)
    _print(result, bench.table(result), json)


@bench.command()
def algorithms(json: Json = False, quick: Quick = False) -> None:
    """Seconds per round of every algorithm, as a multiple of FedAvg's."""
    from pagefl.experiments import bench_rounds

    result = bench_rounds.algorithms(quick=quick, say=err.print)
    _print(result, bench_rounds.algorithms_table(result), json)


@bench.command()
def table5(json: Json = False, quick: Quick = False) -> None:
    """The paper's Table 5: where the time of a round of PAGE goes."""
    from pagefl.experiments import bench_rounds

    result = bench_rounds.table5(quick=quick, say=err.print)
    _print(result, bench_rounds.table5_table(result), json)


def main() -> None:
    """Bad input, a full disk and an interruption each end in one sentence."""
    from pagefl.core.errors import UserError

    try:
        sys.exit(app(standalone_mode=False))  # what a command asked to exit with, or nothing
    except UserError as error:
        _end(str(error), 2)
    except OSError as error:
        _end(f"{error.filename or 'the run directory'}: {error.strerror or error}; nothing already written is lost", 2)
    except KeyboardInterrupt:
        _end("interrupted", 130)
    except Exception as error:
        if hasattr(error, "format_message"):  # the option parser's own
            _end(error.format_message(), 2)
        raise


def _follow(spec: Any, directory: Path, as_json: bool, track: list[str] | None, start: Callable[..., Any]) -> None:
    from pagefl.report.progress import Progress, summary
    from pagefl.report.trackers import tracker

    rounds = spec.rounds
    with Progress(str(directory), rounds) as progress, ExitStack() as closing:
        told = [tracker(name, Path(f"{directory}-tracked"), spec.toml()) for name in track or []]
        for each in told:
            closing.callback(each.close)

        def observe(entry: dict[str, Any]) -> None:
            for each in (progress, *told):
                each.observe(entry)

        result = start(observe=observe, say=progress.say)
    summary(result.rounds, err)
    page = directory / "report.html"
    if result.rounds[-1]["round"] < rounds:
        err.print(f"stopped after round {result.rounds[-1]['round']}; `pagefl resume {directory}` goes on")
    err.print(f"report: {page}")
    if as_json:
        last, best = result.rounds[-1], max(result.rounds, key=lambda r: r["global_accuracy"])
        print(json.dumps({**last, "best_global_accuracy": best["global_accuracy"], "out": str(directory), "report": str(page)}))


def _free_directory(name: str) -> Path:
    candidates = (Path("runs") / (name if i == 1 else f"{name}-{i}") for i in range(1, 10**6))
    return next(path for path in candidates if not path.exists())


def _catalogue(kind: str) -> dict[str, Callable[..., object]]:
    from pagefl.algorithms import ALGORITHMS
    from pagefl.core.errors import UserError
    from pagefl.experiments.settings import NICKNAMES
    from pagefl.experiments.tasks import TASKS
    from pagefl.game import PLAYERS

    nicknames = {name: PLAYERS[meaning["players"]] for name, meaning in NICKNAMES.items()}
    catalogues: dict[str, dict[str, Callable[..., object]]] = {
        "algorithms": {**ALGORITHMS, **nicknames},
        "players": {**PLAYERS},
        "tasks": {**TASKS},
    }
    if kind not in catalogues:
        raise UserError(f"list {kind}: valid is {' or '.join(catalogues)}")
    return catalogues[kind]


def _original(task: str) -> Any:
    from pagefl.core.errors import UserError
    from pagefl.experiments.tasks import ORIGINALS, TASKS

    if task not in TASKS:
        raise UserError(f"data {task}: there is no such task; valid is {', '.join(TASKS)}")
    return ORIGINALS.get(task)


def _part(text: str) -> slice:
    from pagefl.core.errors import UserError

    number, _, parts = text.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise UserError(f"--part {text}: valid is K/N with K from 1 to N, such as 2/8")
    return slice(int(number) - 1, None, int(parts))


def _sweep(wanted: list[Any], folder: Path, jobs: int, write: Callable[[], list[Path]] = list) -> None:
    """Run what is missing, write down what has finished, and say what has not."""
    import os

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


def _print(result: dict[str, Any], table: Table, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
    else:
        console.print(table)


def _end(message: str, code: int) -> None:
    err.print(f"pagefl: {message}", markup=False, highlight=False, soft_wrap=True)
    sys.exit(code)
