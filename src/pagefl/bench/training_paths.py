"""`pagefl bench paths`: local training and evaluation by a plan against row by row, on one core.

Both alternate in one process on one thread, and ratios are of CPU time.
"""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from statistics import median
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.table import Table
from torch import Tensor, nn

from pagefl.core.examples import Examples
from pagefl.core.flops import of_example
from pagefl.core.training import batches
from pagefl.core.training.descent import Descent
from pagefl.core.training.model import Model
from pagefl.core.training.options import Options
from pagefl.core.training.plan.model import PlanModel
from pagefl.models.cnn import cnn
from pagefl.models.resnet import resnet18
from pagefl.runtime.halves import Say
from pagefl.runtime.machine import machine
from pagefl.runtime.workers import keep_memory, one_thread

from . import flops, machine_load
from .clock import seconds
from .engine import MET
from .natural_rows import NaturalRows
from .workloads import images, noise

EXAMPLES, TURNS, CLASSES = 350, 9, 100
Work = Callable[[Model, Tensor], object]


class Comparison(NamedTuple):
    title: str
    module: Callable[[], nn.Module]
    batch_size: int
    bars: dict[str, float]  # required ratio of each kind of work that is measured


COMPARISONS = [
    Comparison("ResNet-18", lambda: resnet18(CLASSES), 32, {"training": 3.3, "evaluation": 1.8}),
    Comparison("width 16", lambda: resnet18(CLASSES, width=16), 32, {"training": 4, "evaluation": 2}),
    Comparison("width 16", lambda: resnet18(CLASSES, width=16), 10, {"training": 6.5}),
    Comparison("width 8", lambda: resnet18(CLASSES, width=8), 32, {"training": 3.5, "evaluation": 1.25}),
    Comparison("CNN", lambda: cnn(CLASSES), 32, {"training": 1.9, "evaluation": 2.5}),
    Comparison("CNN", lambda: cnn(CLASSES), 10, {"training": 1.9}),
]


def paths(quick: bool = False, say: Say = lambda message: None) -> dict[str, Any]:
    """Measure in a process of its own, which is set up like a worker. `quick`: toy size."""
    results = []
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as child:
        for number, comparison in enumerate(COMPARISONS):
            say(f"{comparison.title}, batch {comparison.batch_size} …")
            results += child.submit(measure, number, quick).result()
    seen = machine_load.worst(machine_load.Load(**result["load"]) for result in results)
    return {"quick": quick, "machine": machine(), "load": seen._asdict(), "comparisons": results}


def measure(number: int, quick: bool) -> list[dict[str, Any]]:
    """A result for each kind of work."""
    one_thread()
    keep_memory()
    title, make, batch_size, bars = COMPARISONS[number]
    task = noise(make, images, CLASSES, clients=1, size=20 if quick else EXAMPLES)
    module, train = task.fresh_module(seed=0), task.data.train
    models = PlanModel(module, train.x[:batch_size]), NaturalRows(module)
    plan, rows = ((model, model.layout.row(module)[None]) for model in models)
    descent, client = _epoch(train, batch_size), torch.tensor([0])
    cost = of_example(module, train.x[:1])
    works: dict[str, tuple[Work, int]] = {
        "training": (lambda model, row: model.descend(row, descent), cost.training),
        "evaluation": (lambda model, row: model.score(row, train, client), cost.evaluation),
    }
    results = []
    for kind, bar in bars.items():
        (work, flop), watch = works[kind], machine_load.Watch()
        calls = [partial(work, *side) for side in (plan, rows)]
        for call in calls:  # the first call compiles, or reads what is compiled
            call()
        turns = [[seconds(call, process_time) for call in calls] for _ in range(1 if quick else TURNS)]
        found = _figures(turns, len(train.y), flop, flops.sgemm(process_time))
        load = watch.stop()
        met = found["ratio"] >= bar if load.quiet and not quick else None  # None: unreliable
        about = {"title": title, "batch_size": batch_size, "work": kind}
        results.append({**about, **found, "bar": bar, "met": met, "load": load._asdict()})
    return results


def _epoch(train: Examples, batch_size: int) -> Descent:
    drawn = batches.draw(np.zeros(1, np.uint64), train.sizes.numpy(), np.ones(1, np.int64), batch_size)
    options = Options(lr=torch.tensor([0.01]))
    return Descent(train, torch.tensor([0]), drawn, weight_decay=1e-4, clip=10.0, options=options)


def _figures(turns: list[list[float]], examples: int, flop: int, sgemm: float) -> dict[str, float]:
    """`turns`: CPU seconds of plan and rows. `flop`: of an example. `sgemm`: FLOP/s of this core."""
    plan, rows = (examples / median(side) for side in zip(*turns, strict=True))
    return {
        "samples_per_second_rows": rows,
        "samples_per_second_plan": plan,
        "ratio": median(rows / plan for plan, rows in turns),
        "mflop": flop / 1e6,
        "sgemm_gflops": sgemm / 1e9,
        "share_of_sgemm_rows": rows * flop / sgemm,
        "share_of_sgemm_plan": plan * flop / sgemm,
    }


def table(result: dict[str, Any]) -> Table:
    machine = result["machine"]
    size = "toy sizes, " if result["quick"] else ""
    title = f"{size}one core of {machine['cpu']}, torch {machine['torch']}"
    caption = (
        "Samples per CPU second; the ratio is the median of the turns. Of sgemm: share of the peak of this "
        f"core, rows → plan.\n{machine_load.caption(result)}"
    )
    columns = ("model", "work, batch", "rows", "plan", "ratio", "bar", "of sgemm", "met")
    made = Table(*columns, title=title, caption=caption)
    for r in result["comparisons"]:
        made.add_row(
            r["title"],
            f"training, {r['batch_size']}" if r["work"] == "training" else r["work"],
            f"{r['samples_per_second_rows']:.0f}",
            f"{r['samples_per_second_plan']:.0f}",
            f"{r['ratio']:.2f}×",
            f"{r['bar']:g}×",
            f"{r['share_of_sgemm_rows']:.0%} → {r['share_of_sgemm_plan']:.0%}",
            MET[r["met"]],
        )
    return made
