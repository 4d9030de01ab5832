"""`pagefl bench engine`: the engine against a plain per-client loop.

Both alternate in one run on this machine.
"""

import copy
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from time import process_time
from typing import Any

import numpy as np
import torch
from rich.table import Table

from pagefl.algorithms import ALGORITHMS
from pagefl.core.arrays import Floats
from pagefl.experiments.defaults import DEFAULT_ALGORITHM
from pagefl.runtime.halves import Say
from pagefl.runtime.loop import play
from pagefl.runtime.machine import machine
from pagefl.runtime.settings import Settings
from pagefl.runtime.simulation import one_numeric_mode
from pagefl.runtime.workers import one_thread

from . import flops, machine_load
from .clock import now
from .peak_memory import PeakMemory
from .plain_loop import PLAIN_CLIENTS, plain_round
from .roofline import roofline
from .workloads import WORKLOADS

WARM = 3  # engine rounds before timing starts; memory is sampled in them
MET = {True: "yes", False: "no", None: "–"}


def engine(quick: bool = False, say: Say = lambda message: None) -> dict[str, Any]:
    """Measure each workload in its own process, so that its memory is its own. `quick`: toy size."""
    results = {}
    for name, workload in WORKLOADS.items():
        say(f"{name}: {workload.title} …")
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as child:
            results[name] = child.submit(measure, name, quick).result()
    seen = machine_load.worst(machine_load.Load(**result["load"]) for result in results.values())
    return {"quick": quick, "machine": machine(), "load": seen._asdict(), "workloads": results}


def measure(name: str, quick: bool) -> dict[str, Any]:
    workload = WORKLOADS[name]
    task = workload.task(quick)
    turns, per_turn = (1, 1) if quick else (workload.turns, workload.rounds)
    settings = Settings(**workload.settings, rounds=WARM + turns * per_turn)
    threads = torch.get_num_threads()
    model = copy.deepcopy(task.fresh_module(settings.seed))
    plain: list[Floats] = []
    ours: list[Floats] = []
    memory, watch = PeakMemory(), machine_load.Watch()
    since = now()

    def observe(entry: dict[str, Any]) -> None:
        """Run the plain loop between two rounds of the engine, while the engine's workers sleep."""
        nonlocal since
        ours.append(now() - since)
        if len(ours) == WARM:
            memory.stop()
        if len(ours) > WARM and (len(ours) - WARM) % per_turn == 0:
            with _torch_as_found(threads):
                plain.append(plain_round(model, task.data, settings))
        since = now()

    play(task, ALGORITHMS[DEFAULT_ALGORITHM](), settings, observe=observe)
    seen = watch.stop()
    del ours[:WARM]
    with one_numeric_mode():
        work = flops.of_round(model, task.data, settings)
        figures = _figures(np.array(plain), np.array(ours), work, flops.sgemm(process_time))
    within = workload.memory_bar_mb is None or memory.mb < workload.memory_bar_mb
    result = {
        "title": workload.title,
        **figures,
        "bar": workload.bar,
        "memory_mb": memory.mb,
        "memory_bar_mb": workload.memory_bar_mb,
        "load": seen._asdict(),
        "met": figures["ratio"] >= workload.bar and within
        if seen.quiet and not quick
        else None,  # None: unreliable
        "clients": len(task.data.train),
        "plain_clients_timed": min(len(task.data.train), PLAIN_CLIENTS),
    }
    return (
        {**result, "roofline": roofline(task, settings, figures["seconds_pagefl"])}
        if workload.roofline
        else result
    )


def _figures(plain: Floats, ours: Floats, work: float, sgemm: float) -> dict[str, float]:
    """`plain`, `ours`: rounds x (wall, CPU). `work`: FLOPs of a round. `sgemm`: FLOP/s of one core."""
    (seconds_plain, cpu_plain), (seconds, cpu) = np.median(plain, axis=0), np.median(ours, axis=0)
    figures = {
        "seconds_plain": seconds_plain,
        "seconds_pagefl": seconds,
        "ratio": seconds_plain / seconds,
        "ratio_of_best": plain[:, 0].min() / ours[:, 0].min(),  # least disturbed by other processes
        "cpu_seconds_plain": cpu_plain,
        "cpu_seconds_pagefl": cpu,
        "ratio_of_cpu": cpu_plain / cpu,
        "mflop": work / 1e6,
        "sgemm_gflops": sgemm / 1e9,
        "share_of_sgemm_plain": work / cpu_plain / sgemm,
        "share_of_sgemm_pagefl": work / cpu / sgemm,
    }
    return {name: float(figure) for name, figure in figures.items()}


@contextmanager
def _torch_as_found(threads: int) -> Iterator[None]:
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)
    try:
        yield
    finally:
        one_thread()


def table(result: dict[str, Any]) -> Table:
    machine, workloads = result["machine"], result["workloads"]
    size = "toy sizes, " if result["quick"] else ""
    title = f"{size}{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}"
    bounds = [
        f"{name}: {r['roofline']['gflops']:.1f} GFLOP/s, {r['roofline']['share_of_peak']:.1%} of the "
        "roofline. "
        for name, r in workloads.items()
        if "roofline" in r
    ]
    caption = (
        "Seconds per round, medians: wall time, and CPU time of all threads and workers. "
        "Of sgemm: share of the peak of one core, plain → pagefl. "
        f"{''.join(bounds)}"
        f"The plain loop is timed on {PLAIN_CLIENTS} clients at most, and scaled.\n"
        f"{machine_load.caption(result)}"
    )
    columns = ("", "workload", "plain", "pagefl", "ratio", "of the best", "bar", "of sgemm", "peak MB", "met")
    made = Table(*columns, title=title, caption=caption)
    for name, r in workloads.items():
        made.add_row(
            name,
            r["title"],
            f"{r['seconds_plain']:.3f}\nCPU {r['cpu_seconds_plain']:.3f}",
            f"{r['seconds_pagefl']:.4f}\nCPU {r['cpu_seconds_pagefl']:.4f}",
            f"{r['ratio']:.2f}×\nCPU {r['ratio_of_cpu']:.2f}×",
            f"{r['ratio_of_best']:.2f}×",
            f"{r['bar']:g}×",
            f"{r['share_of_sgemm_plain']:.1%}\n→ {r['share_of_sgemm_pagefl']:.1%}",
            f"{r['memory_mb']:.0f}",
            MET[r["met"]],
        )
    return made
