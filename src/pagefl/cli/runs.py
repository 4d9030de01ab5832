"""`pagefl run, resume, report, bias, verify`: one run."""

import gc
import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from .terminal import Json, err, show_result

OwnAlgorithm = Annotated[
    str | None, typer.Option(metavar="MODULE:CLASS", help="Your own algorithm, if the run has one.")
]
OwnPlayers = Annotated[
    str | None, typer.Option(metavar="MODULE:CLASS", help="Your own players, if the run has some.")
]
Track = Annotated[
    list[str] | None, typer.Option(help="tensorboard or mlflow, beside the run's own records. Repeatable.")
]

Executor = Annotated[
    str | None,
    typer.Option(
        help="local (worker processes) or ray (actors of a cluster); the same results.", show_default="local"
    ),
]
Address = Annotated[
    str | None,
    typer.Option(help="Of a running Ray cluster: auto or HOST:PORT.", show_default="a Ray of its own"),
]


def run(
    spec: Annotated[Path | None, typer.Argument(help="A TOML file of settings.", show_default=False)] = None,
    task: Annotated[str | None, typer.Option(help="See `pagefl list tasks`.")] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="A name of `pagefl list algorithms`, or module:Class.")
    ] = None,
    players: Annotated[
        str | None,
        typer.Option(
            help="Who chooses lr, epochs and weights: a name of `pagefl list players`, or module:Class."
        ),
    ] = None,
    rounds: Annotated[str | None, typer.Option(metavar="INTEGER", help="Communication rounds.")] = None,
    clients: Annotated[str | None, typer.Option(metavar="INTEGER", help="Clients of the federation.")] = None,
    seed: Annotated[
        str | None, typer.Option(metavar="INTEGER", help="Seed of the data and of every random stream.")
    ] = None,
    lr: Annotated[str | None, typer.Option(metavar="FLOAT", help="Learning rate of local SGD.")] = None,
    epochs: Annotated[str | None, typer.Option(metavar="INTEGER", help="Local epochs in a round.")] = None,
    participation: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Fraction of clients that train in each round.")
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(metavar="INTEGER", help="Worker processes; they change speed, never results."),
    ] = None,
    executor: Executor = None,
    address: Address = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting, such as algorithm.mu=0.01. Repeatable.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run's directory.", show_default="runs/TASK-ALGORITHM-sSEED")
    ] = None,
    track: Track = None,
    json: Json = False,
) -> None:
    """Run an algorithm on a task: progress on stderr, a directory with records, checkpoint and report.

    Options override the spec file; --set overrides both.
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
        "executor": executor,
        "address": address,
    }
    for name, value in options.items():  # as strings: the spec checks them all
        if value is not None:
            specs.override(raw, f"{name}={value}")
    for assignment in set_ or []:
        specs.override(raw, assignment)
    resolved = specs.resolve(raw)
    out = out or _free_directory(f"{resolved.task['name']}-{resolved.label}-s{resolved.seed}")
    watch(resolved, out, json, track, lambda **watched: api.launch(resolved, out=out, **watched))


def resume(
    directory: Path,
    rounds: Annotated[
        str | None, typer.Option(metavar="INTEGER", help="Go on to this round instead of the last.")
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Put aside what is there and start from round 1.")
    ] = False,
    executor: Executor = None,
    address: Address = None,
    algorithm: OwnAlgorithm = None,
    players: OwnPlayers = None,
    track: Track = None,
    json: Json = False,
) -> None:
    """Continue from the last checkpoint. The result is the same as without the interruption.

    Damaged records or checkpoints are refused, and nothing is changed; --restart moves them to a folder of
    the directory.
    """
    from pagefl import api

    options: dict[str, Any] = {
        "restart": restart,
        "algorithm": algorithm,
        "players": players,
        "executor": executor,
        "address": address,
    }
    spec = api.spec_of(directory, rounds=rounds, **options)
    options["rounds"] = spec.rounds
    watch(spec, directory, json, track, lambda **watched: api.resume(directory, **options, **watched))


def report(
    directories: list[Path],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
) -> None:
    """Write one interactive page for one or several runs."""
    from pagefl import api

    api.report(directories, out, say=err.print)
    err.print(f"report: {out}")


def bias(directory: Path, ratio: Annotated[str, typer.Argument(help="server:clients, such as 10:1")]) -> None:
    """Change the demand ratio of a running run, from its next round on."""
    from pagefl import api

    err.print(f"bias {api.tip(directory, ratio)} from the next round of {directory}")


def verify(
    directory: Path,
    horizon: Annotated[int, typer.Option(min=1, help="Rounds that each replay lasts.")] = 20,
    clients: Annotated[int, typer.Option(min=1, help="How many clients are tried.")] = 5,
    random: Annotated[int, typer.Option(min=0, help="Random deviations of each, beside a grid.")] = 4,
    algorithm: OwnAlgorithm = None,
    players: OwnPlayers = None,
    json: Json = False,
) -> None:
    """Compute the equilibrium certificate: the most that any one player gains by changing one move."""
    from pagefl import api
    from pagefl.game.certificate import Trial
    from pagefl.reports import certificate

    trial = Trial(horizon=horizon, clients=clients, random=random)
    result = api.verify(directory, trial, say=err.print, algorithm=algorithm, players=players)
    figure = certificate.write(directory, result)
    show_result(result, certificate.table(result), json)
    own = result["epsilon_personal"]
    step = "" if own is None else f"personal step {own:.4f}, "
    err.print(
        f"epsilon: clients {result['epsilon_clients']:.4f}, {step}server {result['epsilon_server']:.4f}; "
        f"figure: {figure}"
    )


def watch(
    spec: Any, directory: Path, as_json: bool, track: list[str] | None, start: Callable[..., Any]
) -> None:
    from pagefl.reports.progress import Progress, summary
    from pagefl.reports.trackers import tracker
    from pagefl.runtime import numbers

    gc.freeze()  # what is imported stays
    rounds = spec.rounds
    with Progress(str(directory), rounds) as progress, ExitStack() as closing:
        told = [tracker(name, Path(f"{directory}-tracked"), spec.toml()) for name in track or []]
        for each in told:
            closing.callback(each.close)

        def observe(entry: dict[str, Any]) -> None:
            progress.observe(entry)
            for each in told:
                each.observe(entry)

        result = start(observe=observe, say=progress.say)
    summary(result.rounds, err)
    page = directory / "report.html"
    if not result.over:
        reached = result.rounds[-1]["round"] if result.rounds else 0
        err.print(f"stopped after round {reached}; `pagefl resume {directory}` goes on", markup=False)
    err.print(f"report: {page}", markup=False)
    if as_json and result.rounds:
        accuracies = (entry["global_accuracy"] for entry in numbers.of_rounds(result.rounds, str(directory)))
        best = max((accuracy for accuracy in accuracies if accuracy is not None), default=None)
        print(
            json.dumps(
                {
                    **result.rounds[-1],
                    "best_global_accuracy": best,
                    "out": str(directory),
                    "report": str(page),
                }
            )
        )
    if result.stopped_by:  # a script must see that the run is not finished
        raise SystemExit(128 + result.stopped_by)


def _free_directory(name: str) -> Path:
    candidates = (Path("runs") / (name if i == 1 else f"{name}-{i}") for i in range(1, 10**6))
    return next(path for path in candidates if not path.exists())
