"""Does page-shared earn its keep? Synthetic at the paper's size, 1000 rounds: four rules and six kinds of
players.

    python benchmarks/sharing.py RESULTS.jsonl --jobs 2        runs what RESULTS.jsonl does not hold yet
    python benchmarks/sharing.py RESULTS.jsonl --table         prints the tables of docs/results/sharing.md
    python benchmarks/sharing.py RESULTS.jsonl --figure DIR    draws its figures

Seeds 0, 1 and 2 were for development and are for the ablations; the reported tables are of others. Tuned is
the best pair of a grid on seed 0, by the sum of both test accuracies: what a search would have found, with
the luck of seeing the test.
"""

from collections.abc import Iterable
from math import isfinite
from pathlib import Path
from statistics import mean

import numpy as np
import pandas as pd
from learning import main, spread
from matplotlib.figure import Figure

from pagefl.experiments.statistics import difference

RULES = {"fedavg": "FedAvg", "feddyn": "FedDyn", "scaffold": "SCAFFOLD", "ditto": "Ditto"}
SEEDS, DEVELOPMENT, ROUNDS = (3, 4, 5, 6, 7), (0, 1, 2), 1000
GRID = [(lr, epochs) for lr in (0.001, 0.005, 0.02, 0.1) for epochs in (1, 5, 20)]
# on SCAFFOLD's rule it is the fixed one
TUNED = {"fedavg": (0.02, 20), "feddyn": (0.001, 20), "ditto": (0.02, 20)}
SHARED = {"name": "page-shared"}
PLAYERS: dict[str, dict] = {
    "page-shared": {"players": SHARED},
    "fixed": {},
    "tuned": {},
    "schedule": {"players": "schedule"},
    "random": {"players": "random"},
    "PAGE, literal": {"players": "page"},
}
DEMANDS: dict[str, dict] = {
    **{f"page-shared {ratio}": {"players": SHARED, "bias": ratio} for ratio in ("10:1", "1:10")},
    **{
        f"page-shared, {ratio} from 600": {"players": SHARED, "bias": [[0, "1:1"], [600, ratio]]}
        for ratio in ("10:1", "1:10")
    },
}
# Each is the whole with one part taken away or changed.
ABLATIONS: dict[str, dict] = {
    "page-shared": {"players": SHARED},
    "by weights": {"players": {**SHARED, "share": "weights"}},
    "weights by size": {"players": SHARED, "freeze": ["p"]},
    "no landing": {"players": {**SHARED, "decay": 0.0}},
    "no learning": {"players": {**SHARED, "explore": 0.0}},
}


def plan() -> list[dict]:
    def jobs(rules: Iterable[str], seed: int, kinds: dict[str, dict]) -> list[dict]:
        return [
            {
                "rule": rule,
                "seed": seed,
                "name": name,
                "settings": {"rounds": ROUNDS, **own, **tuned(name, rule)},
            }
            for name, own in kinds.items()
            for rule in (TUNED if name == "tuned" else rules)
        ]

    def tuned(name: str, rule: str) -> dict:
        return dict(zip(("lr", "epochs"), TUNED[rule], strict=True)) if name == "tuned" else {}

    grid = {f"grid {lr} {epochs}": {"lr": lr, "epochs": epochs} for lr, epochs in GRID}
    reported = [job for seed in SEEDS for job in jobs(RULES, seed, PLAYERS) + jobs(["fedavg"], seed, DEMANDS)]
    return [
        *reported,
        *(job for seed in DEVELOPMENT for job in jobs(RULES, seed, ABLATIONS)),
        *jobs(RULES, 0, grid),
    ]


def table(results: list[dict]) -> str:
    frame = pd.DataFrame(row(r) for r in results)
    reported, developed = frame[frame["seed"].isin(SEEDS)], frame[frame["seed"].isin(DEVELOPMENT)]
    parts = [
        lines(reported, list(PLAYERS), "page-shared gains globally | locally", 1),
        lines(
            reported[reported["rule"] == "fedavg"],
            ["page-shared", *DEMANDS],
            "against 1:1 globally | locally",
            -1,
        ),
        lines(developed, list(ABLATIONS), "against the whole globally | locally", -1),
        searched(developed),
    ]
    return "\n\n".join("\n".join(part) for part in parts)


def row(result: dict) -> dict:
    here, there = (100 * result["last"][f"{side}_accuracy"] for side in ("global", "local"))
    known = {"rule": result["rule"], "seed": result["seed"], "method": result["name"]}
    return {
        **known,
        "global": here,
        "local": there,
        "sum": here + there,
        "epochs": result["epochs_spent"] / ROUNDS,
    }


def lines(frame: pd.DataFrame, names: list[str], compared: str, sign: int) -> list[str]:
    found = [f"| rule | players | seeds | global | local | sum | epochs a round | {compared} |"]
    found += ["|---|---|---|---|---|---|---|---|---|"]
    for rule in RULES:
        of_rule = frame[frame["rule"] == rule]
        for name in names:
            rows = of_rule[of_rule["method"] == name]
            if len(rows):
                cells = [spread(rows[what].tolist(), 2) for what in ("global", "local", "sum")]
                gains = (
                    ["", ""]
                    if name == "page-shared"
                    else [gain(of_rule, name, what, sign) for what in ("global", "local")]
                )
                spent = f"{mean(rows['epochs']):.1f}"
                found.append(f"| {' | '.join([RULES[rule], name, str(len(rows)), *cells, spent, *gains])} |")
    return found


def searched(frame: pd.DataFrame) -> list[str]:
    """The grid: global / local."""
    grid = frame[frame["method"].str.startswith("grid")]
    rules = [rule for rule in RULES if rule in set(grid["rule"])]
    found = [
        f"| lr | epochs | {' | '.join(RULES[rule] for rule in rules)} |",
        "|---" * (2 + len(rules)) + "|",
    ]
    cells = {(r["method"], r["rule"]): f"{r['global']:.2f} / {r['local']:.2f}" for _, r in grid.iterrows()}
    for lr, epochs in GRID:
        found.append(
            f"| {lr} | {epochs} | "
            f"{' | '.join(cells.get((f'grid {lr} {epochs}', rule), '') for rule in rules)} |"
        )
    return found


def gain(frame: pd.DataFrame, other: str, what: str, sign: int) -> str:
    """Of page-shared over the other, or the other way round; paired by seed, with a 95 % interval."""
    found = difference(frame, *["page-shared", other][::sign], what)
    return f"{found.mean:+.2f}" + (f" [{found.low:+.2f}, {found.high:+.2f}]" if isfinite(found.low) else "")


def draw(results: list[dict], folder: Path) -> None:
    """How lr and both accuracies go, over rounds and rules; and what a change of demand does."""
    show = {
        "page-shared": "C0",
        "fixed": "C7",
        "tuned": "C4",
        "schedule": "C2",
        "random": "C1",
        "PAGE, literal": "C3",
    }
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
                curves(axis, results, rule, kind, name, color)
            axis.grid(alpha=0.3)
            if name == "mean_lr":
                axis.set_yscale("log")
            elif "accuracy" in name:
                axis.set_ylim(82, 98.5)
    for axis, rule in zip(grid[0], RULES, strict=True):
        axis.set_title(RULES[rule])
    for axis in grid[-1]:
        axis.set_xlabel("round")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(show))
    figure.savefig(folder / "sharing-rules.png", dpi=110)

    figure = Figure(figsize=(11, 4), layout="constrained")
    kinds = dict(zip(["page-shared", *DEMANDS], ["C0", "C3", "C2", "C1", "C4"], strict=True))
    for axis, name in zip(
        figure.subplots(1, 2, sharex=True), ("global_accuracy", "local_accuracy"), strict=True
    ):
        for kind, color in kinds.items():
            curves(axis, results, "fedavg", kind, name, color, "--" if "from" in kind else "-")
        axis.set_xlabel("round")
        axis.set_ylabel(what[name])
        axis.set_xlim(100, ROUNDS)
        axis.set_ylim(86, 97.5)
        axis.grid(alpha=0.3)
    axis.legend(loc="lower right")
    figure.savefig(folder / "sharing-demand.png", dpi=110)


def curves(axis, results: list[dict], rule: str, kind: str, name: str, color: str, dash: str = "-") -> None:
    found = [
        r["curve"][name] for r in results if (r["rule"], r["name"]) == (rule, kind) and r["seed"] in SEEDS
    ]
    if not found:
        return
    values = np.array(found) * (100 if "accuracy" in name else 1)
    rounds = np.linspace(ROUNDS / values.shape[1], ROUNDS, values.shape[1])
    axis.plot(rounds, values.mean(0), dash, color=color, label=kind, lw=1.5)
    axis.fill_between(rounds, values.min(0), values.max(0), color=color, alpha=0.15, lw=0)


if __name__ == "__main__":
    main(plan, table, __doc__, draw)
