"""Controls on simulated phones, by the hour; and what simulated time costs.

python benchmarks/virtual_time.py RESULTS.json --figure docs/figures/devices.png   runs what is not there yet
python benchmarks/virtual_time.py --cost
"""

import argparse
import json
from pathlib import Path
from time import process_time

import pagefl
from pagefl.core.server import ServerHalf
from pagefl.devices.costs import Meter
from pagefl.game.clock import Clock

# 100 clients, all of them phones that need the reference model's seconds, though the model is a small one
TASK = {"task": {"name": "synthetic", "alpha": 1.0}, "seed": 0, "workers": 1, "personal": {"when": "never"}}
SAMPLED = {**TASK, "participation": 0.2}
PHONES = {"name": "phones", "reference": 0.0, "hours": 24.0}
DEADLINE = {"barrier": "deadline", "deadline": 60.0}
FIRST = {"barrier": "first", "over": 1.3}
BUFFER = {"barrier": "first", "over": 2.0, "late": "buffer"}
PATCHES = {"task": "cifar100-patches", "workers": 1, "participation": 0.5, "epochs": 5}
CONTROLS = {  # label: rounds, players, devices
    "wait for all": (60, "fixed", {}),
    "deadline, late dropped": (125, "fixed", DEADLINE),
    "deadline, partial work": (125, "partial", DEADLINE),
    "epochs scaled to speed": (120, "scaled", {}),
    "first of 1.3 ×": (110, "fixed", FIRST),
    "Oort, first of 1.3 ×": (130, "fixed", {**FIRST, "select": "oort"}),
    "FedBuff, 2 × at work": (220, "fixed", BUFFER),
}


def measured(path: Path) -> dict:
    held = json.loads(path.read_text()) if path.exists() else {}
    for label, (rounds, players, own) in CONTROLS.items():
        if label not in held:
            run = pagefl.run(**SAMPLED, rounds=rounds, players=players, devices={**PHONES, **own})
            columns = ("clock", "global_accuracy", "late", "participants")
            held[label] = {name: run.history[name].tolist() for name in columns}
            path.write_text(json.dumps(held))
    return held


def figure(held: dict, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    axes = plt.figure(figsize=(7, 4.2)).gca()
    last = min(values["clock"][-1] for values in held.values()) / 3600
    for label, values in held.items():
        axes.plot([clock / 3600 for clock in values["clock"]], values["global_accuracy"], label=label, lw=1.4)
    axes.set(xlim=(0, last), xlabel="simulated hours", ylabel="accuracy of the shared model")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    axes.figure.tight_layout()
    axes.figure.savefig(path, dpi=130)


def cost() -> None:
    """The CPU time of simulated time, and of the draw of participants, as a share of all."""
    spent = 0.0

    def timed(kind: type, name: str) -> None:
        method = getattr(kind, name)

        def wrapped(*arguments: object) -> object:
            nonlocal spent
            begun = process_time()
            found = method(*arguments)
            spent += process_time() - begun
            return found

        setattr(kind, name, wrapped)

    draw = (ServerHalf, "participants")  # what a run without time does, too
    for kind, name in (draw, (Clock, "draw"), (Clock, "counted"), (Meter, "prices"), (Meter, "costs")):
        timed(kind, name)
    for label, settings in (
        ("synthetic, 100 clients, no time", TASK),
        ("synthetic, 20 of 100, no time", SAMPLED),
        ("synthetic, 100 clients, waiting", {**TASK, "devices": PHONES}),
        ("synthetic, 20 of 100, first", {**SAMPLED, "devices": {**PHONES, "hours": 12.0, **FIRST}}),
        ("synthetic, 20 of 100, FedBuff", {**SAMPLED, "devices": {**PHONES, **FIRST, "late": "buffer"}}),
        ("cifar100-patches, 50 of 100, FedBuff", {**PATCHES, "devices": {**PHONES, **BUFFER}}),
    ):
        times = []

        def observe(entry: object, times: list = times) -> None:
            times.append((process_time(), spent))

        pagefl.run(**settings, rounds=60, observe=observe)
        (begun, before), (ended, after) = times[9], times[-1]
        share, rounds = (after - before) / (ended - begun), len(times) - 10
        print(
            f"{label}: {(after - before) / rounds * 1e6:.0f} µs of {(ended - begun) / rounds * 1e3:.1f} ms, "
            f"{share:.2%}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="?")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--cost", action="store_true")
    asked = parser.parse_args()
    if asked.cost:
        cost()
    if asked.results:
        found = measured(asked.results)
        for label, values in found.items():
            print(
                label,
                f"{values['clock'][-1] / 3600:.2f} h",
                values["global_accuracy"][-1],
                sum(values["late"]),
            )
        if asked.figure:
            figure(found, asked.figure)
