"""`pagefl data`: the original files, and the data of each client."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from .terminal import console, err

app = typer.Typer(
    no_args_is_help=True, help="The original files of the data sets: nothing is ever downloaded."
)
TaskName = Annotated[str, typer.Argument(metavar="TASK", help="See `pagefl list tasks`.")]
Root = Annotated[
    Path | None, typer.Option(help="Where the files are.", show_default="PAGEFL_DATA, or else ./data")
]


@app.command()
def check(task: TaskName, root: Root = None) -> None:
    """Check that a task's original files are there. If not, print what is missing and where to get it."""
    original = _original(task)
    place, verified = original.check(root)
    err.print(f"{task}: {place}: {verified}")


@app.command()
def prepare(task: TaskName, root: Root = None) -> None:
    """Prepare the arrays that runs use. A run prepares them itself if they are missing."""
    original = _original(task)
    arrays = original.load(root)
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
    err.print(f"{task}: {shapes}")
    if root is not None:
        err.print(f"runs find it with PAGEFL_DATA={root}")


@app.command()
def show(
    task: TaskName,
    clients: Annotated[int | None, typer.Option(min=1, help="Clients of the federation.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the run.")] = 0,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the task, such as delta=0.1. Repeatable.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The figure to write.")] = Path("partition.png"),
) -> None:
    """Show each client's training data: a table, and a figure of clients by classes."""
    import numpy as np

    from pagefl.data.partition import Partition, summary
    from pagefl.experiments import spec as specs
    from pagefl.reports.partition import heat_map

    raw: dict[str, Any] = {"task": task}
    for assignment in [*([f"clients={clients}"] if clients else []), *(set_ or [])]:
        specs.override(raw, f"task.{assignment.removeprefix('task.')}")
    train = specs.make_task(specs.resolve(raw).task, seed).data.train
    labels = train.y.numpy()
    dealt = Partition(np.arange(len(labels)), train.starts.numpy())
    figure = heat_map(
        dealt.class_counts(labels), out, f"{task}, seed {seed}: training data of {len(dealt)} clients"
    )
    table = Table(
        "of the clients", "samples", "classes", "largest share of a class", "effective classes", box=None
    )
    clients_by = summary(dealt, labels)
    for name, row in clients_by.quantile([0.0, 0.5, 1.0]).set_axis(["least", "median", "most"]).iterrows():
        table.add_row(str(name), *(f"{value:.4g}" for value in row))
    console.print(table)
    err.print(f"figure: {figure}")


def _original(task: str) -> Any:
    from pagefl.core.errors import UserError
    from pagefl.experiments.tasks import TASKS

    if task not in TASKS:
        raise UserError(f"data {task}: there is no such task; expected one of {', '.join(TASKS)}")
    original = TASKS[task].original
    if original is None:
        err.print(
            f"{task} has no original files: its data are generated, come with pagefl, or are in task.folder"
        )
        raise typer.Exit
    return original
