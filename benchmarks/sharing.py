"""page-shared from starts that are right, ten times too small and ten times too large, beside its controls.

    python benchmarks/sharing.py RESULTS.jsonl --jobs 2 [--only TEXT]    runs what RESULTS.jsonl does not hold
    python benchmarks/sharing.py RESULTS.jsonl --table          prints the tables of docs/results/sharing.md
    python benchmarks/sharing.py RESULTS.jsonl --figure PNG     draws its figure

Settings were chosen on seeds 0 to 2 of Synthetic and cifar100-patches; the tables are of other seeds. The
grid's best is read off the test accuracies, by their sum: what a search would have found with luck.
"""

import argparse
import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple


class Setting(NamedTuple):
    lr: float
    epochs: int
    most: int  # epochs
    rounds: int
    lrs: tuple[float, ...]  # of the grid
    epoch_grid: tuple[int, ...]


TASKS = {
    "cifar100-patches": Setting(1.0, 1, 4, 200, (0.1, 0.3, 1.0, 3.0), (1, 2, 4)),
    "synthetic": Setting(0.1, 20, 20, 300, (0.003, 0.01, 0.03, 0.1), (1, 5, 20)),
    "digits": Setting(0.1, 5, 20, 50, (0.03, 0.1, 0.3, 1.0), (1, 5, 20)),
    "tiny-imagenet-patches": Setting(1.0, 1, 4, 200, (0.1, 0.3, 1.0, 3.0), (1, 2, 4)),
    "shakespeare-mlp": Setting(1.0, 1, 4, 150, (0.1, 0.3, 1.0, 3.0), (1, 2, 4)),
}
ALGORITHMS = {"fedavg": "FedAvg", "feddyn": "FedDyn", "scaffold": "SCAFFOLD", "ditto": "Ditto"}
# its second model is trained as long as the first one
OWN = {(task, "ditto"): {"name": "ditto", "personal_epochs": own.epochs} for task, own in TASKS.items()}
SEEDS = (3, 4, 5, 6, 7)
T_95 = {3: 4.30, 4: 3.18, 5: 2.78}  # of Student's t, by the number of seeds
STARTS = ("×0.1", "×1", "×10")
CONTROLS = {
    "fixed": {"players": "fixed"},
    "cosine": {"players": "cosine"},
    "0.998 a round": {"players": "fixed", "lr_decay": 0.998},
    "FedEx": {"players": "fedex"},
    "PAGE": {"players": "page"},
}
RATIOS = ("10:1", "3:1", "1:1", "1:3", "1:10")
PRICES = (0.003, 0.01, 0.03, 0.1)
KEPT = (
    *("global_accuracy", "local_accuracy", "personal_accuracy", "personal_step"),
    *("gradients", "gradients_personal", "mean_lr", "mean_epochs"),
)


def start(task: str, name: str) -> dict:
    own = TASKS[task]
    lr, epochs = {"×0.1": (own.lr / 10, 1), "×1": (own.lr, own.epochs), "×10": (10 * own.lr, own.most)}[name]
    return {"lr": lr, "epochs": epochs}


def cells() -> list[dict]:
    def cell(task: str, algorithm: str, seed: int, name: str, **settings: object) -> dict:
        settings = {"rounds": TASKS[task].rounds, **settings}
        return {"task": task, "algorithm": algorithm, "seed": seed, "name": name, "settings": settings}

    shared = {"players": "page-shared"}
    found = []
    for task, own in TASKS.items():
        for seed in SEEDS:
            for algorithm in ALGORITHMS:
                for name in STARTS:
                    found.append(cell(task, algorithm, seed, name, **shared, **start(task, name)))
                    few = {**shared, **start(task, name), "participation": 0.2}
                    found.append(cell(task, algorithm, seed, f"{name}, 20 %", **few))
                    for control, settings in CONTROLS.items():
                        more = {**settings, **start(task, name)}
                        found.append(cell(task, algorithm, seed, f"{control} {name}", **more))
                    alone = {**CONTROLS["fixed"], **start(task, name), "participation": 0.2}
                    found.append(cell(task, algorithm, seed, f"fixed {name}, 20 %", **alone))
                for lr, epochs in product(own.lrs, own.epoch_grid):
                    point, name = {"lr": lr, "epochs": epochs}, f"grid {lr:g} × {epochs}"
                    found.append(cell(task, algorithm, seed, name, **point))
                    found.append(cell(task, algorithm, seed, f"{name}, 20 %", **point, participation=0.2))
            for ratio in RATIOS:
                found.append(cell(task, "fedavg", seed, f"demand {ratio}", **shared, bias=ratio))
            for price in PRICES:
                players = {"name": "page-shared", "price": price}
                found.append(cell(task, "fedavg", seed, f"price {price:g}", players=players))
    return found


def run(cell: dict) -> dict:
    import pagefl
    from pagefl.runtime.machine import machine

    settings = cell["settings"]
    rounds = pagefl.run(
        task=cell["task"],
        algorithm=OWN.get((cell["task"], cell["algorithm"]), cell["algorithm"]),
        seed=cell["seed"],
        judge_every=settings["rounds"],
        clients_every=0,
        workers=1,
        **settings,
    ).rounds
    last = {name: rounds[-1][name] for name in KEPT}
    here = machine()
    seconds = round(sum(entry["seconds"] for entry in rounds), 1)
    return {**cell, **last, "commit": here["commit"], "cpu": here["cpu"], "seconds": seconds}


def key(cell: dict) -> str:
    return json.dumps([cell[name] for name in ("task", "algorithm", "seed", "name")], ensure_ascii=False)


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def tables(results: list[dict]) -> str:
    """For every task: global / personal accuracy, the mean over seeds."""
    lines = []
    for task in TASKS:
        mine = [r for r in results if r["task"] == task]
        if not mine:
            continue
        names = [name for name in dict.fromkeys(r["name"] for r in mine) if not name.startswith("grid")]
        lines += [f"\n### {task}\n", f"| players | {' | '.join(ALGORITHMS.values())} |", "|---" * 5 + "|"]
        rows = {name: [r for r in mine if r["name"] == name] for name in sorted(names)}
        for name, found in rows.items():
            lines.append(f"| {name} | {' | '.join(_cell(found, each) for each in ALGORITHMS)} |")
        for few in ("", ", 20 %"):
            best = {algorithm: _best(mine, algorithm, few) for algorithm in ALGORITHMS}
            cells = (
                f"{_cell(found, a)} {found[0]['name'][5:]}" if found else "" for a, found in best.items()
            )
            lines.append(f"| best of the grid, in hindsight{few} | {' | '.join(cells)} |")
            for name in STARTS:
                for other, label in ((best, "the grid's best"), (None, "its start")):
                    told = (
                        _paired(rows.get(name + few, []), other or rows.get(f"fixed {name}{few}", []), a)
                        for a in ALGORITHMS
                    )
                    lines.append(f"| {name}{few} less {label} | {' | '.join(told)} |")
    return "\n".join(lines)


def _paired(found: list[dict], other: list[dict] | dict[str, list[dict]], algorithm: str) -> str:
    """Mean difference over the seeds that both have, with a 95 % interval where there are several."""
    theirs = other[algorithm] if isinstance(other, dict) else other
    known = {r["seed"]: r for r in theirs if r["algorithm"] == algorithm}
    pairs = [(r, known[r["seed"]]) for r in found if r["algorithm"] == algorithm and r["seed"] in known]
    if not pairs:
        return ""
    said = []
    for axis in ("global_accuracy", "personal_accuracy"):
        gaps = [100 * (r[axis] - s[axis]) for r, s in pairs]
        wide = T_95[len(gaps)] * stdev(gaps) / len(gaps) ** 0.5 if len(gaps) in T_95 else None
        said.append(f"{mean(gaps):+.1f}" + ("" if wide is None else f" ± {wide:.1f}"))
    return f"{' / '.join(said)} ({len(pairs)})"


def _cell(found: list[dict], algorithm: str) -> str:
    mine = [r for r in found if r["algorithm"] == algorithm]
    if not mine:
        return ""
    means = [100 * mean(r[axis] for r in mine) for axis in ("global_accuracy", "personal_accuracy")]
    return f"{means[0]:.1f} / {means[1]:.1f} ({len(mine)})"


def _best(mine: list[dict], algorithm: str, few: str) -> list[dict]:
    grid: dict[str, list[dict]] = {}
    for r in mine:
        name = r["name"]
        if r["algorithm"] == algorithm and name.startswith("grid") and name.endswith("20 %") == bool(few):
            grid.setdefault(name, []).append(r)
    if not grid:
        return []
    most = max(len(found) for found in grid.values())
    complete = {name: found for name, found in grid.items() if len(found) == most}
    return max(
        complete.values(),
        key=lambda found: mean(r["global_accuracy"] + r["personal_accuracy"] for r in found),
    )


def draw(results: list[dict], path: Path) -> None:
    """Both accuracies from each start: page-shared against the same start left alone."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    task, kinds = (
        "cifar100-patches",
        {"page-shared": ("", "#14a06f", 0.12), "as started": ("fixed ", "#8a8f98", -0.12)},
    )
    figure, panels = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True, layout="constrained")
    for axes, axis in zip(panels, ("global_accuracy", "personal_accuracy"), strict=True):
        for label, (prefix, colour, aside) in kinds.items():
            for marker, begun in zip("vo^", STARTS, strict=True):
                found = {
                    a: [
                        r[axis]
                        for r in results
                        if (r["task"], r["algorithm"], r["name"]) == (task, a, prefix + begun)
                    ]
                    for a in ALGORITHMS
                }
                places = [i + aside for i, a in enumerate(ALGORITHMS) if found[a]]
                heights = [100 * mean(values) for values in found.values() if values]
                axes.plot(
                    places, heights, marker, color=colour, label=f"{label}, lr {begun}", ms=7, alpha=0.85
                )
        axes.set_xticks(range(len(ALGORITHMS)), ALGORITHMS.values())
        axes.set_title({"global_accuracy": "shared model", "personal_accuracy": "clients' own models"}[axis])
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
    panels[0].set_ylabel("accuracy, %")
    panels[1].legend(frameon=False, fontsize=8, ncols=2, loc="lower right")
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="cells whose key contains all of these words")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    if given.figure:
        draw(read(given.results), given.figure)
        return
    if given.table:
        print(tables(read(given.results)))
        return
    done = {key(r) for r in read(given.results)}
    wanted = [c for c in cells() if key(c) not in done]
    wanted = [c for c in wanted if all(w in f"{key(c)} seed{c['seed']}" for w in given.only.split("+") if w)]
    with ProcessPoolExecutor(given.jobs) as pool:
        for each in as_completed([pool.submit(run, c) for c in wanted]):
            with given.results.open("a") as file:
                file.write(json.dumps(each.result(), ensure_ascii=False) + "\n")
            print(key(each.result()), flush=True)


if __name__ == "__main__":
    main()
