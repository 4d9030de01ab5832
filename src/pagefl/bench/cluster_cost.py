"""`pagefl bench cluster`: a round on Ray's actors against a round with local workers, on one machine.

Workers and actors play in turn, in one process that has started Ray. They are started once.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from time import perf_counter, sleep
from typing import Any, NamedTuple

from rich.table import Table

from pagefl.algorithms import ALGORITHMS
from pagefl.core.memory import available
from pagefl.experiments.builders import synthetic
from pagefl.experiments.defaults import DEFAULT_ALGORITHM
from pagefl.experiments.paper import METHODS
from pagefl.game.game import Game
from pagefl.game.protocol import Players
from pagefl.models.resnet import resnet18
from pagefl.runtime import cluster
from pagefl.runtime.demand import Demand
from pagefl.runtime.halves import Say
from pagefl.runtime.machine import machine
from pagefl.runtime.ray_blocks import STORE
from pagefl.runtime.ray_connection import connect
from pagefl.runtime.rounds import Rounds
from pagefl.runtime.settings import Settings
from pagefl.runtime.simulation import Simulation, one_numeric_mode, simulate
from pagefl.runtime.task import Task
from pagefl.runtime.workers import kept_memory

from . import machine_load
from .engine import MET
from .workloads import DEEP, images, noise

TURNS = 3
EXECUTORS = {"2 workers": ("local", 2), "2 actors": ("ray", 2), "1 actor": ("ray", 1)}
TOGETHER = (("2 workers", "2 actors"), ("1 actor",))  # Ray has two CPUs, and an actor takes one
CLIENTS = (16, 256)  # of the federations whose bytes are counted


class Workload(NamedTuple):
    title: str
    rounds: int  # of a turn; the first of them is not timed
    settings: dict[str, Any]
    bar: float  # seconds that a round may take longer with two actors than with two workers


WORKLOADS = {
    "W": Workload("logistic, 100 clients", 20, {"batch_size": 5}, 0.03),
    "W3": Workload("ResNet-18, 10 clients", 4, {**DEEP, "batch_size": 50}, 0.0),
    "resnet": Workload("ResNet-18 of width 16, 100 clients", 4, {**DEEP, "batch_size": 32}, 0.0),
}
RESNETS = {"W3": (64, 10, 50), "resnet": (16, 100, 350)}  # width, clients, examples of each


def costs(quick: bool = False, say: Say = lambda message: None) -> dict[str, Any]:
    """Seconds per round of every workload with every executor, and bytes per round of every algorithm."""
    watch = machine_load.Watch()
    sleep(1.0)  # Ray's processes count as others later
    load = watch.stop()
    ray, _ = connect("", int(STORE * available()))
    address = str(ray.get_runtime_context().gcs_address)
    try:
        with one_numeric_mode(), kept_memory():
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
    for labels in TOGETHER:
        with ExitStack() as started:
            playing = {
                label: started.enter_context(
                    playing_rounds(
                        _task(name, quick), _settings(*EXECUTORS[label], address, **workload.settings)
                    )
                )
                for label in labels
            }
            for _ in range(1 if quick else TURNS):
                for label, (rounds, _) in playing.items():
                    found = [_seconds(rounds) for _ in range(2 if quick else workload.rounds)]
                    seconds[label] += found[1:]
    medians = {label: median(values) for label, values in seconds.items()}
    over = medians["2 actors"] - medians["2 workers"]
    met = over <= workload.bar if quiet and not quick else None
    return {"title": workload.title, "seconds": medians, "overhead": over, "bar": workload.bar, "met": met}


@contextmanager
def playing_rounds(
    task: Task, settings: Settings, algorithm: str = DEFAULT_ALGORITHM
) -> Iterator[tuple[Rounds, Simulation]]:
    """Rounds that are played when they are asked for, with workers or actors that stay."""
    start = cluster.simulate if settings.executor == "ray" else simulate
    simulation = start(task, ALGORITHMS[algorithm](), settings, lambda line: None)
    with simulation.with_workers():
        yield Rounds(Game(*simulation.game(Players())), settings, Demand([], None)), simulation


def _seconds(rounds: Rounds) -> float:
    started = perf_counter()
    rounds.play()
    return perf_counter() - started


def _task(name: str, quick: bool) -> Task:
    if name == "W":
        return synthetic(0, 10 if quick else 100)
    width, clients, examples = (4, 2, 50) if quick else RESNETS[name]
    return noise(lambda: resnet18(100, width=width), images, 100, clients, examples)


def _settings(executor: str, workers: int, address: str, **more: Any) -> Settings:
    own = {"executor": executor, "workers": workers, "address": address if executor == "ray" else ""}
    return Settings.model_validate({**own, "personal": {"when": "never"}, **more})


def _moved(address: str, quick: bool) -> list[dict[str, Any]]:
    """Bytes of a round between this process and two actors, in federations of different sizes."""
    found = []
    fit = [name for name, kind in ALGORITHMS.items() if name in METHODS and not kind.needs_body]
    for name in fit[: 1 if quick else None]:
        for clients in CLIENTS[: 1 if quick else None]:
            settings = _settings("ray", 2, address, epochs=1, chunk=min(CLIENTS) // 2)
            with playing_rounds(synthetic(0, clients), settings, name) as (rounds, simulation):
                moved = moved_in_a_round(rounds, simulation)
            row = simulation.server.model_row.nbytes
            found.append(
                # at least: a model to each of two actors, and a sum from each
                {"algorithm": name, "clients": clients, "bytes": moved, "least": 4 * row, "model": row}
            )
    return found


def moved_in_a_round(rounds: Rounds, simulation: Simulation) -> int:
    """In the second one: the first moves what stays."""
    assert isinstance(simulation, cluster.ClusterSimulation)
    rounds.play()
    before = simulation.blocks.moved
    rounds.play()
    return simulation.blocks.moved - before


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
    of_clients = (f"{count} clients" for count in counts)
    made = Table(
        *("algorithm", *of_clients, "least", *(f"per client of {count}" for count in counts)),
        caption="Kilobytes of arrays per round between the driver and two actors.",
    )
    for name in dict.fromkeys(found["algorithm"] for found in result["bytes"]):
        own = [found for found in result["bytes"] if found["algorithm"] == name]
        sums = (found["bytes"] for found in own)
        shares = (found["bytes"] / found["clients"] for found in own)
        made.add_row(
            name,
            *(f"{size / 1000:.1f}" for size in (*sums, own[0]["least"])),
            *(f"{size / 1000:.2f}" for size in shares),
        )
    return made
