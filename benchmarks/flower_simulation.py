"""Seconds per round of Flower's simulation engine and of pagefl, on the same federations and two CPUs.

    python benchmarks/flower_simulation.py RESULTS.jsonl [--quick] [--only W]

Adds a line for each workload to RESULTS.jsonl and prints a table. The engines alternate, each turn in a new
process. A round is timed from the end of the round before it. The first rounds of a turn are not timed.

The engines share the data, the first model, local SGD (batch size, lr, epochs, clipping, weight decay), the
weights of the average, and what is evaluated: each trained model on its client's test data, the shared model
on the server's. Each trains in two processes with one thread. They differ in the order of batches, and pagefl
treats tiny numbers as zero. CPU seconds include all processes that an engine has started, also Ray's own.
"""

import argparse
import json
import logging
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import torch
from flower_app import Federation, client_app, evaluate, federation, server_app
from rich.console import Console
from rich.table import Table
from torch import Tensor

from pagefl.algorithms import ALGORITHMS
from pagefl.bench import machine_load
from pagefl.bench.machine_load import Load
from pagefl.bench.workloads import WORKLOADS
from pagefl.experiments.defaults import DEFAULT_ALGORITHM
from pagefl.runtime.loop import play
from pagefl.runtime.machine import machine

CPUS = 2
ENVIRONMENT = {
    "RAY_worker_niceness": "0",  # Ray's workers would yield to every other process
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray warns of it otherwise
    "FLWR_TELEMETRY_ENABLED": "0",
}
State = dict[str, Tensor]


class Turn(NamedTuple):
    seconds: list[float]  # of each timed round
    cpu_seconds: float  # per timed round
    others: float  # share of the machine that other processes used in the timed rounds
    state: State  # the shared model after as many rounds as Flower plays


class Plan(NamedTuple):
    turns: int
    flower: int  # timed rounds of a turn, after one that is not
    pagefl: int  # timed rounds of a turn, after three that are not


PLANS = {"W": Plan(2, 1, 50), "W3": Plan(2, 2, 6)}
QUICK = Plan(1, 1, 2)


class Stopwatch:
    """Notes when rounds end. CPU time is read outside of the timed rounds: that takes milliseconds."""

    def __init__(self, warm: int, rounds: int) -> None:
        """`warm`: ends of rounds before the first timed one begins."""
        self.warm, self.rounds = warm, rounds
        self.ends: list[float] = []
        self.cpu: list[tuple[float, float]] = []  # of this engine, of the machine

    def __call__(self) -> None:
        if len(self.ends) == self.warm:
            self._read()
        self.ends.append(perf_counter())
        if len(self.ends) == self.warm + self.rounds + 1:
            self._read()

    def _read(self) -> None:
        self.cpu.append((used(), machine_load.read().busy or 0.0))

    def turn(self, state: State) -> Turn:
        timed = self.ends[self.warm : self.warm + self.rounds + 1]
        own, busy = (after - before for before, after in zip(*self.cpu, strict=True))
        machine_seconds = (timed[-1] - timed[0]) * (os.cpu_count() or 1)
        seconds = [later - sooner for sooner, later in pairwise(timed)]
        return Turn(seconds, own / self.rounds, max(0.0, busy - own) / machine_seconds, state)


def used() -> float:
    """CPU seconds of this process and of all that it has started."""
    parents, seconds = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        pid = int(path.parent.name)
        parents[pid], seconds[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(seconds[pid] for pid in family) / os.sysconf("SC_CLK_TCK")


def flower(workload: str, quick: bool, plan: Plan) -> Turn:
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    watch, states = Stopwatch(warm=1, rounds=plan.flower), []

    def ended(state: State) -> None:
        states.append(state)
        watch()

    app = server_app(workload, quick, 1 + plan.flower, ended)
    config = {
        "init_args": {"num_cpus": CPUS, "log_to_driver": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    clients = len(federation(workload, quick).task.data.train)
    run_simulation(app, client_app, clients, backend_config=config)
    return watch.turn(states[-1])


def pagefl(executor: str, workload: str, quick: bool, plan: Plan) -> Turn:
    task, settings = federation(workload, quick)[:2]
    watch = Stopwatch(warm=2, rounds=plan.pagefl)

    def run(rounds: int, observe: Callable[[dict[str, Any]], None]) -> State:
        own = settings.model_copy(update={"executor": executor, "workers": CPUS, "rounds": rounds})
        played = play(task, ALGORITHMS[DEFAULT_ALGORITHM](), own, observe=observe)
        return played.model.state_dict()

    run(3 + plan.pagefl, lambda entry: watch())
    return watch.turn(run(1 + plan.flower, lambda entry: None))


def local(workload: str, quick: bool, plan: Plan) -> Turn:
    return pagefl("local", workload, quick, plan)


def ray(workload: str, quick: bool, plan: Plan) -> Turn:
    return pagefl("ray", workload, quick, plan)


ENGINES = {"Flower": flower, "pagefl, 2 workers": local, "pagefl, 2 actors": ray}


def measure(workload: str, quick: bool) -> dict[str, Any]:
    plan = QUICK if quick else PLANS[workload]
    turns: dict[str, list[Turn]] = {name: [] for name in ENGINES}
    began = perf_counter()
    for _ in range(plan.turns):
        for name, engine in ENGINES.items():
            # Not a fork: Ray and Flower leave threads behind.
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as child:
                turns[name].append(child.submit(engine, workload, quick, plan).result())
            print(f"{workload}, {name}: {median(turns[name][-1].seconds):.4f} s", flush=True)
    others = max(turn.others for own in turns.values() for turn in own)
    quiet, average = others < machine_load.QUIET, os.getloadavg()[0]
    spent = sum(turn.cpu_seconds * len(turn.seconds) for own in turns.values() for turn in own)
    load = Load(quiet, others, perf_counter() - began, spent, average, os.cpu_count() or 1)
    made = federation(workload, quick)
    reference = turns["Flower"][-1].state
    return {
        "workload": workload,
        "title": WORKLOADS[workload].title,
        "quick": quick,
        "machine": machine(),
        "versions": {name: version(name) for name in ("flwr", "ray", "pagefl")},
        "load": load._asdict(),
        "rounds": 1 + plan.flower,
        "engines": {name: figures(own, made, reference) for name, own in turns.items()},
    }


def figures(turns: list[Turn], made: Federation, reference: State) -> dict[str, Any]:
    """`reference`: Flower's model."""
    state, start = turns[-1].state, made.start.state_dict()
    made.local.load_state_dict(state)
    data = made.task.data
    return {
        "seconds": median(second for turn in turns for second in turn.seconds),
        "seconds_of_rounds": [[round(second, 4) for second in turn.seconds] for turn in turns],
        "cpu_seconds": median(turn.cpu_seconds for turn in turns),
        "others": [round(turn.others, 2) for turn in turns],
        "train_loss": evaluate(made.local, data.train.x, data.train.y)[0],
        "test_accuracy": evaluate(made.local, data.test.x, data.test.y)[1],
        "distance": distance(state, reference) / distance(reference, start),
    }


def distance(a: State, b: State) -> float:
    return sum(float((a[name] - b[name]).double().square().sum()) for name in a) ** 0.5


def table(results: list[dict[str, Any]]) -> Table:
    facts = results[0]["machine"]
    captions = [f"{result['workload']}: {machine_load.caption(result)}" for result in results]
    title = f"{facts['cpu']}, {CPUS} CPUs, torch {facts['torch']}, seconds per round (medians)"
    columns = ("", "engine", "seconds", "CPU", "Flower takes", "of the CPU", "train loss", "test accuracy")
    made = Table(*columns, title=title, caption="\n".join(captions))
    for result in results:
        base = result["engines"]["Flower"]
        for name, found in result["engines"].items():
            made.add_row(
                result["workload"],
                name,
                f"{found['seconds']:.3f}",
                f"{found['cpu_seconds']:.3f}",
                f"{base['seconds'] / found['seconds']:.1f}×",
                f"{base['cpu_seconds'] / found['cpu_seconds']:.1f}×",
                f"{found['train_loss']:.4f}",
                f"{found['test_accuracy']:.2%}",
            )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path)
    parser.add_argument("--quick", action="store_true", help="toy sizes")
    parser.add_argument("--only", choices=PLANS)
    given = parser.parse_args()
    results = []
    with TemporaryDirectory(prefix="ray") as folder:
        # Ray would connect to another Ray that runs on this machine, if it found its address.
        os.environ.update(ENVIRONMENT, RAY_TMPDIR=folder)
        for workload in [given.only] if given.only else PLANS:
            results.append(measure(workload, given.quick))
            with given.results.open("a") as file:
                file.write(json.dumps(results[-1], ensure_ascii=False) + "\n")
    Console(width=110).print(table(results))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
