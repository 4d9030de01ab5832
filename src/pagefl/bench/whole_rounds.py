"""`pagefl bench rounds`: whole rounds by a plan against row by row, with two workers.

A round trains every client, evaluates personal models and the shared one, and aggregates. Both paths
alternate in one process.
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from pagefl.algorithms import ALGORITHMS
from pagefl.core.arrays import Floats
from pagefl.experiments.defaults import DEFAULT_ALGORITHM
from pagefl.models.resnet import resnet18
from pagefl.runtime.halves import Say
from pagefl.runtime.loop import play
from pagefl.runtime.machine import machine
from pagefl.runtime.settings import Settings
from pagefl.runtime.task import Task

from . import machine_load
from .clock import now
from .engine import MET
from .workloads import DEEP, images, noise

WORKERS, TURNS, ROUNDS, BAR = 2, 3, 3, 2.5  # ROUNDS: of a turn; the first of them is not timed
CLASSES = 100


class Federation(NamedTuple):
    title: str
    width: int
    clients: int
    size: int  # training examples of a client
    test: int


FEDERATIONS = [
    Federation("ResNet-18", 64, 6, 100, 20),
    Federation("width 16", 16, 10, 350, 70),
]


def rounds(quick: bool = False, say: Say = lambda message: None) -> dict[str, Any]:
    """Measure each federation in a process of its own. `quick`: toy size."""
    results = []
    for number, federation in enumerate(FEDERATIONS):
        say(f"{federation.title} …")
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as child:
            results.append(child.submit(measure, number, quick).result())
    seen = machine_load.worst(machine_load.Load(**result["load"]) for result in results)
    return {"quick": quick, "machine": machine(), "load": seen._asdict(), "federations": results}


def measure(number: int, quick: bool) -> dict[str, Any]:
    title, width, clients, size, test = FEDERATIONS[number]
    if quick:
        width, clients, size, test = 4, 2, 20, 5
    task = noise(lambda: resnet18(CLASSES, width=width), images, CLASSES, clients, size, test)
    watch = machine_load.Watch()
    turns = np.array([[_turn(task, path) for path in ("plan", "rows")] for _ in range(1 if quick else TURNS)])
    load = watch.stop()
    (wall_plan, cpu_plan), (wall_rows, cpu_rows) = np.median(turns, axis=0)
    ratio = float(np.median(turns[:, 1, 1] / turns[:, 0, 1]))
    return {
        "title": title,
        "clients": clients,
        "examples": size,
        "seconds_rows": float(wall_rows),
        "seconds_plan": float(wall_plan),
        "cpu_seconds_rows": float(cpu_rows),
        "cpu_seconds_plan": float(cpu_plan),
        "ratio": float(np.median(turns[:, 1, 0] / turns[:, 0, 0])),
        "ratio_of_cpu": ratio,
        "bar": BAR,
        "met": ratio >= BAR if load.quiet and not quick else None,  # None: unreliable
        "load": load._asdict(),
    }


def _turn(task: Task, path: str) -> Floats:
    """Seconds of a round, wall and CPU: the median of a few."""
    ended: list[Floats] = []
    settings = Settings.model_validate(
        {**DEEP, "batch_size": 32, "workers": WORKERS, "path": path, "rounds": ROUNDS}
    )
    play(task, ALGORITHMS[DEFAULT_ALGORITHM](), settings, observe=lambda entry: ended.append(now()))
    median: Floats = np.median(np.diff(np.array(ended), axis=0), axis=0)
    return median


def table(result: dict[str, Any]) -> Table:
    machine = result["machine"]
    size = "toy sizes, " if result["quick"] else ""
    title = f"{size}{machine['cpu']}, {WORKERS} workers, torch {machine['torch']}"
    caption = f"Seconds per round, medians: wall and CPU time.\n{machine_load.caption(result)}"
    made = Table("model", "clients", "rows", "plan", "ratio", "bar", "met", title=title, caption=caption)
    for r in result["federations"]:
        made.add_row(
            r["title"],
            f"{r['clients']} × {r['examples']}",
            f"{r['seconds_rows']:.2f}\nCPU {r['cpu_seconds_rows']:.2f}",
            f"{r['seconds_plan']:.2f}\nCPU {r['cpu_seconds_plan']:.2f}",
            f"{r['ratio']:.2f}×\nCPU {r['ratio_of_cpu']:.2f}×",
            f"{r['bar']:g}×",
            MET[r["met"]],
        )
    return made
