"""`pagefl bench engine`: the engine against a plain per-client loop.

Both alternate in one run on this machine.
"""

import copy
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import Any

import torch
from rich.table import Table

from pagefl.core.algorithm import Algorithm
from pagefl.runtime.halves import Say
from pagefl.runtime.loop import play
from pagefl.runtime.machine import machine
from pagefl.runtime.settings import Settings
from pagefl.runtime.workers import one_thread

from . import machine_load
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
    plain: list[float] = []
    ours: list[float] = []
    memory, watch = PeakMemory(), machine_load.Watch()
    since = perf_counter()

    def observe(entry: dict[str, Any]) -> None:
        """Run the plain loop between two rounds of the engine, while the engine's workers sleep."""
        nonlocal since
        ours.append(perf_counter() - since)
        if len(ours) == WARM:
            memory.stop()
        if len(ours) > WARM and (len(ours) - WARM) % per_turn == 0:
            with _torch_as_found(threads):
                plain.append(plain_round(model, task.data, settings))
        since = perf_counter()

    play(task, Algorithm(), settings, observe=observe)
    seen = watch.stop()
    del ours[:WARM]
    ratio, ratio_of_best = median(plain) / median(ours), min(plain) / min(ours)
    within = workload.memory_bar_mb is None or memory.mb < workload.memory_bar_mb
    result = {
        "title": workload.title,
        "seconds_plain": median(plain),
        "seconds_pagefl": median(ours),
        "ratio": ratio,
        "ratio_of_best": ratio_of_best,  # least disturbed by other processes
        "bar": workload.bar,
        "memory_mb": memory.mb,
        "memory_bar_mb": workload.memory_bar_mb,
        "load": seen._asdict(),
        "met": ratio >= workload.bar and within if seen.quiet and not quick else None,  # None: unreliable
        "clients": len(task.data.train),
        "plain_clients_timed": min(len(task.data.train), PLAIN_CLIENTS),
    }
    return {**result, "roofline": roofline(task, settings, median(ours))} if workload.roofline else result


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
        f"Seconds per round, medians. {''.join(bounds)}"
        f"The plain loop is timed on {PLAIN_CLIENTS} clients at most, and scaled.\n"
        f"{machine_load.caption(result)}"
    )
    columns = ("", "workload", "plain", "pagefl", "ratio", "of the best", "bar", "peak MB", "met")
    made = Table(*columns, title=title, caption=caption)
    for name, r in workloads.items():
        seconds = (f"{r['seconds_plain']:.3f}", f"{r['seconds_pagefl']:.4f}")
        ratios = (f"{r['ratio']:.2f}×", f"{r['ratio_of_best']:.2f}×", f"{r['bar']:g}×")
        made.add_row(name, r["title"], *seconds, *ratios, f"{r['memory_mb']:.0f}", MET[r["met"]])
    return made
