"""`pagefl bench cluster`: a round on Ray's actors against a round with local workers, on one machine.

All executors play in turn, in one process that has started Ray.
"""

from statistics import median
from time import sleep
from typing import Any, NamedTuple

from rich.table import Table

from pagefl.algorithms import ALGORITHMS
from pagefl.experiments.builders import synthetic
from pagefl.experiments.defaults import DEFAULT_ALGORITHM
from pagefl.experiments.paper import METHODS
from pagefl.game.game import Game
from pagefl.game.protocol import Players
from pagefl.models.resnet import resnet18
from pagefl.runtime import cluster
from pagefl.runtime.demand import Demand
from pagefl.runtime.halves import Say
from pagefl.runtime.loop import play
from pagefl.runtime.machine import machine
from pagefl.runtime.ray_connection import connect
from pagefl.runtime.rounds import Rounds
from pagefl.runtime.settings import Settings
from pagefl.runtime.simulation import one_numeric_mode
from pagefl.runtime.task import Task

from . import machine_load
from .engine import MET
from .workloads import DEEP, images, noise

TURNS = 3
EXECUTORS = {"2 workers": ("local", 2), "1 actor": ("ray", 1), "2 actors": ("ray", 2)}
CLIENTS = (16, 256)  # of the federations whose bytes are counted


class Workload(NamedTuple):
    title: str
    rounds: int  # of a turn; the first of them is not timed
    settings: dict[str, Any]
    bar: float  # seconds that a round may take longer with two actors than with two workers


WORKLOADS = {
    "W": Workload("logistic, 100 clients", 20, {"batch_size": 5}, 0.03),
    "W3": Workload("ResNet-18, 10 clients", 4, {**DEEP, "batch_size": 50}, 0.0),
}


def costs(quick: bool = False, say: Say = lambda message: None) -> dict[str, Any]:
    """Seconds per round of every workload with every executor, and bytes per round of every algorithm."""
    watch = machine_load.Watch()
    sleep(1.0)  # Ray's processes count as others later
    load = watch.stop()
    ray, _ = connect("", 2**30)
    address = str(ray.get_runtime_context().gcs_address)
    try:
        workloads = {}
        for name, workload in WORKLOADS.items():
            say(f"{name}: {workload.title} …")
            workloads[name] = _measured(name, workload, address, quick, load.quiet)
        say("bytes …")
        moved = _moved(address, quick)
    finally:
        ray.shutdown()
    return {
        "quick": quick,
        "machine": machine(),
        "load": load._asdict(),
        "workloads": workloads,
        "bytes": moved,
    }


def _measured(name: str, workload: Workload, address: str, quick: bool, quiet: bool | None) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {label: [] for label in EXECUTORS}
    for _ in range(1 if quick else TURNS):
        for label, (executor, workers) in EXECUTORS.items():
            rounds = 2 if quick else workload.rounds
            own = _settings(executor, workers, address, rounds=rounds, **workload.settings)
            run = play(_task(name, quick), ALGORITHMS[DEFAULT_ALGORITHM](), own)
            seconds[label] += [entry["seconds"] for entry in run.rounds[1:]]
    found = {label: median(values) for label, values in seconds.items()}
    over = found["2 actors"] - found["2 workers"]
    met = over <= workload.bar if quiet and not quick else None
    return {"title": workload.title, "seconds": found, "overhead": over, "bar": workload.bar, "met": met}


def _task(name: str, quick: bool) -> Task:
    if name == "W":
        return synthetic(0, 10 if quick else 100)
    width, clients = (4, 2) if quick else (64, 10)
    return noise(lambda: resnet18(100, width=width), images, 100, clients, 50)


def _settings(executor: str, workers: int, address: str, **more: Any) -> Settings:
    own = {"executor": executor, "workers": workers, "address": address if executor == "ray" else ""}
    return Settings.model_validate({**own, "personal": {"when": "never"}, **more})


def _moved(address: str, quick: bool) -> list[dict[str, Any]]:
    """Bytes of a round between this process and two actors, in federations of different sizes."""
    found = []
    fit = [name for name, kind in ALGORITHMS.items() if name in METHODS and not kind.needs_body]
    for name in fit[: 1 if quick else None]:
        for clients in CLIENTS[: 1 if quick else None]:
            settings = _settings("ray", 2, address, epochs=1)
            with one_numeric_mode():
                simulation = cluster.simulate(
                    synthetic(0, clients), ALGORITHMS[name](), settings, lambda line: None
                )
                with simulation.with_workers():
                    rounds = Rounds(Game(*simulation.game(Players())), settings, Demand([], None))
                    rounds.play()
                    before = simulation.blocks.moved
                    rounds.play()
                    moved = simulation.blocks.moved - before
            row = simulation.server.model_row.nbytes
            found.append(
                # at least: a model to each of two actors, and a sum from each
                {"algorithm": name, "clients": clients, "bytes": moved, "least": 4 * row, "model": row}
            )
    return found


def table(result: dict[str, Any]) -> Table:
    facts = result["machine"]
    size = "toy sizes, " if result["quick"] else ""
    caption = f"Milliseconds per round, medians.\n{machine_load.caption(result)}"
    made = Table(
        *("workload", *EXECUTORS, "2 actors take longer by", "bar", "met"),
        title=f"{size}{facts['cpu']}, torch {facts['torch']}",
        caption=caption,
    )
    for name, found in result["workloads"].items():
        times = [f"{1000 * seconds:.1f}" for seconds in found["seconds"].values()]
        over, bar = f"{1000 * found['overhead']:.1f}", f"{1000 * found['bar']:g}"
        made.add_row(f"{name}: {found['title']}", *times, over, bar, MET[found["met"]])
    return made


def table_of_bytes(result: dict[str, Any]) -> Table:
    counts = sorted({found["clients"] for found in result["bytes"]})
    made = Table(
        *("algorithm", *(f"{count} clients" for count in counts), "least"),
        caption="Kilobytes of arrays per round between the driver and two actors.",
    )
    for name in dict.fromkeys(found["algorithm"] for found in result["bytes"]):
        own = [found for found in result["bytes"] if found["algorithm"] == name]
        made.add_row(
            name, *(f"{found['bytes'] / 1000:.1f}" for found in own), f"{own[0]['least'] / 1000:.1f}"
        )
    return made
