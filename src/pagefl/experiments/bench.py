"""Benchmark of the engine against a plain per-client loop. Both alternate in one run on this machine."""

import copy
import multiprocessing
import os
import platform
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pagefl.core.algorithm import Algorithm
from pagefl.core.examples import Splits
from pagefl.data.federated import FederatedData
from pagefl.data.pairs import Pair
from pagefl.data.synthetic import CLASSES, FEATURES
from pagefl.models.lstm import lstm
from pagefl.models.resnet import resnet18
from pagefl.runtime.loop import play
from pagefl.runtime.settings import Settings
from pagefl.runtime.task import Task
from pagefl.runtime.workers import one_thread

from . import load
from .tasks import synthetic

WARM = 3  # engine rounds before timing starts; memory is sampled in them
MET = {True: "yes", False: "no", None: "–"}
PLAIN_CLIENTS = 100  # the plain loop times at most so many clients; the time is scaled to all


class Workload(NamedTuple):
    title: str
    bar: float  # required speed-up
    task: Callable[[bool], Task]  # argument: True for toy size
    settings: dict[str, Any]
    turns: int  # rounds of the plain loop
    rounds: int  # rounds of the engine before each of them
    memory_bar_mb: float | None = None


def _images(quick: bool) -> Task:
    return _unjudged(lambda: resnet18(100, width=4 if quick else 64), lambda n: _bytes(256, n, 3, 32, 32), 100, quick, 50)


def _text(quick: bool) -> Task:
    return _unjudged(lstm, lambda n: _bytes(80, n, 80), 80, quick, 50 if quick else 200)


def _bytes(below: int, *shape: int) -> Tensor:
    return torch.randint(below, shape, dtype=torch.uint8)


def _unjudged(module: Callable[[], nn.Module], draw: Callable[[int], Tensor], classes: int, quick: bool, size: int) -> Task:
    """A task with random data, to time training. Models are evaluated on one example only."""

    def pair(n: int) -> Pair:
        return draw(n), torch.randint(classes, (n,))

    train, test, holdout = ([pair(n) for _ in range(2 if quick else 10)] for n in (size, 1, 1))
    return Task("noise", module, FederatedData(train, test, pair(2), holdout))


LOGISTIC = {"lr": 0.1, "epochs": 5, "batch_size": 5, "weight_decay": 1e-5, "clip": 10.0}
DEEP = {**LOGISTIC, "epochs": 1, "batch_size": 50}
WORKLOADS = {
    "W": Workload("logistic, 100 clients", 100, lambda quick: synthetic(0, 4 if quick else 100), LOGISTIC, 3, 10),
    "W2": Workload("logistic, 1000 clients", 100, lambda quick: synthetic(0, 8 if quick else 1000), LOGISTIC, 3, 3, 1000),
    "W3": Workload("ResNet-18, 10 clients", 1.2, _images, DEEP, 7, 1),
    "W4": Workload("LSTM, 10 clients", 1.5, _text, DEEP, 7, 1),
}


def engine(quick: bool = False, say: Callable[[str], None] = lambda message: None) -> dict[str, Any]:
    """Measure each workload in its own process, so that its memory is its own. `quick`: toy size."""
    results = {}
    for name, workload in WORKLOADS.items():
        say(f"{name}: {workload.title} …")
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as child:
            results[name] = child.submit(measure, name, quick).result()
    seen = load.worst(load.Load(**result["load"]) for result in results.values())
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
    memory, watch = Memory(), load.Watch()
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
    within = workload.memory_bar_mb is None or memory.peak_mb < workload.memory_bar_mb
    result = {
        "title": workload.title,
        "seconds_plain": median(plain),
        "seconds_pagefl": median(ours),
        "ratio": ratio,
        "ratio_of_best": ratio_of_best,  # least disturbed by other processes
        "bar": workload.bar,
        "memory_mb": memory.peak_mb,
        "memory_bar_mb": workload.memory_bar_mb,
        "load": seen._asdict(),
        "met": ratio >= workload.bar and within if seen.quiet and not quick else None,  # None: unreliable
        "clients": len(task.data.train),
        "plain_clients_timed": min(len(task.data.train), PLAIN_CLIENTS),
    }
    return {**result, "roofline": _roofline(task, settings, median(ours))} if name == "W" else result


def plain_round(model: nn.Module, data: Splits, settings: Settings) -> float:
    """Seconds of one round of plain FedAvg. If only some clients were timed, their time is scaled to all."""
    start = perf_counter()
    timed = min(len(data.train), PLAIN_CLIENTS)
    total = int(data.train.sizes[:timed].sum())
    average = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    for i in range(timed):
        x, y = data.train.client(i)
        local = copy.deepcopy(model)
        optimizer = torch.optim.SGD(local.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
        for _ in range(settings.epochs):
            for batch in torch.randperm(len(y)).split(settings.batch_size):
                optimizer.zero_grad()
                cross_entropy(local(x[batch]), y[batch]).backward()
                nn.utils.clip_grad_norm_(local.parameters(), settings.clip)
                optimizer.step()
        for name, value in local.state_dict().items():
            average[name] += value * (len(y) / total)
        _judge(local, *data.test.client(i))
    model.load_state_dict(average)
    middle = perf_counter()
    _judge(model, torch.cat([data.game.x, data.server_test.x]), torch.cat([data.game.y, data.server_test.y]))
    return (middle - start) * len(data.train) / timed + perf_counter() - middle


def _judge(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    with torch.no_grad():
        logits = model(x)
        return cross_entropy(logits, y).item(), (logits.argmax(1) == y).float().mean().item()


@contextmanager
def _torch_as_found(threads: int) -> Iterator[None]:
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)
    try:
        yield
    finally:
        one_thread()


class Memory:
    """Samples the peak memory of this process and its children. Shared pages count once."""

    def __init__(self) -> None:
        self.peak_mb = 0.0
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._enough.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
            self.peak_mb = max(self.peak_mb, sum(_field(f"/proc/{pid}/smaps_rollup", "Pss") for pid in pids) * 1024 / 1e6)
            if self._enough.wait(0.01):
                return


def _field(path: str, name: str) -> int:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:  # the process has ended, or this is not Linux
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _roofline(task: Task, settings: Settings, seconds: float) -> dict[str, float]:
    """The least work of a round of W, at the speed of torch's own matmul and copy on all cores."""
    data, row = task.data, (FEATURES + 1) * CLASSES
    seen = settings.epochs * len(data.train.x)
    steps = settings.epochs * int((-(-data.train.sizes // settings.batch_size)).sum())
    judged = len(data.test.x) + len(data.game.x) + len(data.server_test.x)
    flops = row * (4 * seen + 5 * steps + 2 * judged)  # forward and backward; norm, decay and step; forward
    moved = 4 * (FEATURES + 1) * (seen + judged) + 8 * row * len(data.train)  # examples; rows in and out
    a, b, c = torch.randn(1024, 1024), torch.ones(2**25), torch.ones(2**25)
    peak_flops = 2 * 1024**3 / min(_seconds(lambda: torch.mm(a, a)) for _ in range(10))
    peak_bytes = 8 * 2**25 / min(_seconds(lambda: b.copy_(c)) for _ in range(10))
    bound = max(flops / peak_flops, moved / peak_bytes)
    return {
        "mflop": flops / 1e6,
        "mbyte": moved / 1e6,
        "peak_gflops": peak_flops / 1e9,
        "peak_gbytes": peak_bytes / 1e9,
        "gflops": flops / seconds / 1e9,
        "seconds_at_peak": bound,
        "share_of_peak": bound / seconds,
    }


def _seconds(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def machine() -> dict[str, Any]:
    try:
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].split(":")[1].strip()
    except (OSError, IndexError):
        cpu = platform.processor()
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "commit": _commit(Path(__file__).parents[3] / ".git"),
    }


def _commit(git: Path) -> str | None:
    try:
        head = (git / "HEAD").read_text().strip()
        return (git / head.removeprefix("ref: ")).read_text().strip() if head.startswith("ref: ") else head
    except OSError:
        return None


def table(result: dict[str, Any]) -> Table:
    machine, roofline = result["machine"], result["workloads"]["W"]["roofline"]
    size = "toy sizes, " if result["quick"] else ""
    title = f"{size}{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}"
    caption = (
        f"Seconds per round, medians. W: {roofline['gflops']:.1f} GFLOP/s, {roofline['share_of_peak']:.1%} of the roofline. "
        f"The plain loop is timed on {PLAIN_CLIENTS} clients at most, and scaled.\n{load.sentence(load.Load(**result['load']))}"
    )
    columns = ("", "workload", "plain", "pagefl", "ratio", "of the best", "bar", "peak MB", "met")
    made = Table(*columns, title=title, caption=caption)
    for name, r in result["workloads"].items():
        seconds = (f"{r['seconds_plain']:.3f}", f"{r['seconds_pagefl']:.4f}")
        ratios = (f"{r['ratio']:.2f}×", f"{r['ratio_of_best']:.2f}×", f"{r['bar']:g}×")
        made.add_row(name, r["title"], *seconds, *ratios, f"{r['memory_mb']:.0f}", MET[r["met"]])
    return made
