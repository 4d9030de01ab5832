"""Does page-shared earn its keep? Synthetic at the paper's size, 1000 rounds: four rules, five kinds of players and a grid.

    python benchmarks/sharing.py RESULTS.jsonl --jobs 2        runs what RESULTS.jsonl does not hold yet
    python benchmarks/sharing.py RESULTS.jsonl --table         prints the tables of docs/results/sharing.md
    python benchmarks/sharing.py RESULTS.jsonl --figure DIR    draws its figures

Seeds 0, 1 and 2 were for development and are for the ablations; the reported tables are of others. The best fixed setting is
the best in hindsight, for each rule and seed by the sum of both test accuracies: no real search could do better.
"""

from pathlib import Path
from statistics import mean

import numpy as np
import pandas as pd
from learning import main, spread
from matplotlib.figure import Figure

from pagefl.experiments.statistics import difference

RULES, SEEDS, DEVELOPMENT, ROUNDS = ("fedavg", "feddyn", "scaffold", "ditto"), (3, 4, 5, 6, 7), (0, 1, 2), 1000
GRID = [(0.1, 20), (0.02, 20), (0.001, 20), (0.1, 5), (0.02, 1)]  # the first is the paper's
SHARED = {"name": "page-shared"}
PLAYERS: dict[str, dict] = {
    "page-shared": {"players": SHARED},
    **{f"grid {lr} {epochs}": {"lr": lr, "epochs": epochs} for lr, epochs in GRID},
    "schedule": {"players": "schedule"},
    "random": {"players": "random"},
    "PAGE, literal": {"players": "page"},
}
DEMANDS: dict[str, dict] = {
    **{f"page-shared {ratio}": {"players": SHARED, "bias": ratio} for ratio in ("10:1", "1:10")},
    "page-shared, 10:1 from 600": {"players": SHARED, "bias": [[0, "1:1"], [600, "10:1"]]},
}
# Each is the whole with one part taken away or changed.
ABLATIONS: dict[str, dict] = {
    "page-shared": {"players": SHARED},
    "by weights": {"players": {**SHARED, "share": "weights"}},
    "weights by size": {"players": SHARED, "freeze": ["p"]},
    "no landing": {"players": {**SHARED, "landing": 0.0}},
    "no learning": {"players": {**SHARED, "explore": 0.0}},
}
SHOWN = ["page-shared", "best of the grid", "fixed", "schedule", "random", "PAGE, literal"]


def plan() -> list[dict]:
    def jobs(rules: tuple[str, ...], seed: int, kinds: dict[str, dict]) -> list[dict]:
        return [
            {"rule": rule, "seed": seed, "name": name, "settings": {"rounds": ROUNDS, **own}}
            for name, own in kinds.items()
            for rule in rules
        ]

    reported = [job for seed in SEEDS for job in jobs(RULES, seed, PLAYERS) + jobs(("fedavg",), seed, DEMANDS)]
    return reported + [job for seed in DEVELOPMENT for job in jobs(RULES, seed, ABLATIONS)]


def table(results: list[dict]) -> str:
    frame = pd.DataFrame([row(r, r["name"]) for r in results] + named(results))
    reported, developed = frame[frame["seed"].isin(SEEDS)], frame[frame["seed"].isin(DEVELOPMENT)]
    return "\n\n".join(
        "\n".join(lines(found, names))
        for found, names in ((reported, SHOWN), (reported, ["page-shared", *DEMANDS]), (developed, list(ABLATIONS)))
    )


def row(result: dict, name: str) -> dict:
    here, there = (100 * result["last"][f"{side}_accuracy"] for side in ("global", "local"))
    known = {"rule": result["rule"], "seed": result["seed"], "method": name}
    return {**known, "global": here, "local": there, "sum": here + there, "epochs": result["epochs_spent"] / ROUNDS}


def named(results: list[dict]) -> list[dict]:
    """Of the grid: the paper's setting, and the best one of each rule and seed whose grid is complete."""
    rows = [row(r, "fixed") for r in results if r["name"] == f"grid {GRID[0][0]} {GRID[0][1]}"]
    for rule in RULES:
        for seed in {r["seed"] for r in results}:
            found = [
                row(r, "best of the grid") for r in results if (r["rule"], r["seed"]) == (rule, seed) and "grid" in r["name"]
            ]
            rows += [max(found, key=lambda r: r["sum"])] if len(found) == len(GRID) else []
    return rows


def lines(frame: pd.DataFrame, names: list[str]) -> list[str]:
    found = ["| rule | players | seeds | global | local | sum | epochs a round | page-shared gains globally | locally |"]
    found += ["|---|---|---|---|---|---|---|---|---|"]
    for rule in RULES:
        of_rule = frame[frame["rule"] == rule]
        for name in names:
            rows = of_rule[of_rule["method"] == name]
            if len(rows):
                cells = [spread(rows[what].tolist(), 2) for what in ("global", "local", "sum")]
                gains = ["", ""] if name == "page-shared" else [gain(of_rule, name, what) for what in ("global", "local")]
                spent = f"{mean(rows['epochs']):.1f}"
                found.append(f"| {' | '.join([rule, name, str(len(rows)), *cells, spent, *gains])} |")
    return found


def gain(frame: pd.DataFrame, other: str, what: str) -> str:
    """Paired by seed, with a 95 % interval."""
    found = difference(frame, "page-shared", other, what)
    return f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


def draw(results: list[dict], folder: Path) -> None:
    """How lr and both accuracies go, over rounds and rules; and what a change of demand does."""
    show = {"page-shared": "C0", "grid 0.1 20": "C7", "schedule": "C2", "random": "C1", "PAGE, literal": "C3"}
    what = {
        "global_accuracy": "global accuracy, %",
        "local_accuracy": "local accuracy, %",
        "mean_lr": "lr",
        "mean_epochs": "epochs",
    }
    figure = Figure(figsize=(12, 11), layout="constrained")
    grid = figure.subplots(len(what), len(RULES), sharex=True, sharey="row")
    for axes, name in zip(grid, what, strict=True):
        axes[0].set_ylabel(what[name])
        for axis, rule in zip(axes, RULES, strict=True):
            for kind, color in show.items():
                curves(axis, results, rule, kind, name, color, "fixed" if "grid" in kind else kind)
            axis.grid(alpha=0.3)
            if name == "mean_lr":
                axis.set_yscale("log")
            elif "accuracy" in name:
                axis.set_ylim(82, 98.5)
    for axis, rule in zip(grid[0], RULES, strict=True):
        axis.set_title(rule)
    for axis in grid[-1]:
        axis.set_xlabel("round")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(show))
    figure.savefig(folder / "sharing-rules.png", dpi=110)

    figure = Figure(figsize=(11, 4), layout="constrained")
    kinds = dict(zip(["page-shared", *DEMANDS], ["C0", "C3", "C2", "C4"], strict=True))
    for axis, name in zip(figure.subplots(1, 2, sharex=True), ("global_accuracy", "local_accuracy"), strict=True):
        for kind, color in kinds.items():
            curves(axis, results, "fedavg", kind, name, color, kind)
        axis.set_xlabel("round")
        axis.set_ylabel(what[name])
        axis.set_xlim(400, ROUNDS)
        axis.set_ylim(88, 97.5)
        axis.grid(alpha=0.3)
    axis.legend(loc="lower right")
    figure.savefig(folder / "sharing-demand.png", dpi=110)


def curves(axis, results: list[dict], rule: str, kind: str, name: str, color: str, label: str) -> None:
    found = [r["curve"][name] for r in results if (r["rule"], r["name"]) == (rule, kind) and r["seed"] in SEEDS]
    if not found:
        return
    values = np.array(found) * (100 if "accuracy" in name else 1)
    rounds = np.linspace(ROUNDS / values.shape[1], ROUNDS, values.shape[1])
    axis.plot(rounds, values.mean(0), color=color, label=label, lw=1.5)
    axis.fill_between(rounds, values.min(0), values.max(0), color=color, alpha=0.15, lw=0)


if __name__ == "__main__":
    main(plan, table, __doc__, draw)
