"""`pagefl bench algorithms`: the cost of a round of every algorithm, as a multiple of FedAvg's."""

from collections import defaultdict
from typing import Any

from rich.table import Table

from pagefl.algorithms import ALGORITHMS
from pagefl.core.algorithm import Algorithm
from pagefl.core.errors import UserError
from pagefl.experiments.builders import synthetic
from pagefl.runtime.halves import Say
from pagefl.runtime.loop import play
from pagefl.runtime.settings import Settings

from . import machine_load
from .workloads import LOGISTIC


def algorithms(quick: bool = False, say: Say = lambda message: None) -> dict[str, Any]:
    """Seconds of the fastest round on W. Each algorithm alternates with FedAvg."""
    task, turns, rounds = synthetic(0, 8 if quick else 100), 1 if quick else 3, 2 if quick else 5
    settings = Settings(**{**LOGISTIC, "rounds": rounds})
    results: dict[str, dict[str, Any]] = {}
    watch = machine_load.Watch()
    for name, kind in ALGORITHMS.items():
        say(f"{name} …")
        try:
            seconds: dict[str, list[float]] = defaultdict(list)
            for _ in range(turns):
                for who, algorithm in (("own", kind()), ("reference", Algorithm())):
                    seconds[who] += [entry["seconds"] for entry in play(task, algorithm, settings).rounds[1:]]
        except UserError as refusal:
            results[name] = {"refused": str(refusal)}
            continue
        own, reference = min(seconds["own"]), min(seconds["reference"])
        results[name] = {"seconds": own, "seconds_fedavg": reference, "multiple": own / reference}
    return {"workload": "W", "load": watch.stop()._asdict(), "algorithms": results}


def table(result: dict[str, Any]) -> Table:
    columns = ("algorithm", "seconds per round", "times FedAvg's")
    made = Table(*columns, title="W: logistic, 100 clients, 5 epochs", caption=machine_load.caption(result))
    for name, r in result["algorithms"].items():
        made.add_row(
            name,
            *(["–", r["refused"]] if "refused" in r else [f"{r['seconds']:.4f}", f"{r['multiple']:.2f}"]),
        )
    return made
