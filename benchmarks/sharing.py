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
from unittest.mock import patch


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
    "Δ-SGD": {"players": "fixed", "optimiser": "deltasgd"},
    "PAGE": {"players": "page"},
}
LENGTHS = {
    "": {},
    ", 20 %": {"participation": 0.2},
    ", 50 rounds": {"rounds": 50},
    ", 4 %, 50 rounds": {"rounds": 50, "participation": 0.04},
}
RATIOS = ("10:1", "3:1", "1:1", "1:3", "1:10")
PRICES = (0.003, 0.01, 0.03, 0.1)
KEPT = (
    *("global_accuracy", "local_accuracy", "personal_accuracy", "personal_step"),
    *("gradients", "gradients_personal", "mean_lr", "mean_epochs"),
)
KEPT_OF_GRID = ("global_accuracy", "personal_accuracy", "gradients")


def start(task: str, name: str) -> dict:
    own = TASKS[task]
    lr, epochs = {"×0.1": (own.lr / 10, 1), "×1": (own.lr, own.epochs), "×10": (10 * own.lr, own.most)}[name]
    return {"lr": lr, "epochs": epochs}


def cells(known: list[dict]) -> list[dict]:
    """All that is wanted. `known`: results so far, for how long a control has as many gradients."""

    def cell(task: str, algorithm: str, seed: int, name: str, **settings: object) -> dict:
        settings = {"rounds": TASKS[task].rounds, **settings}
        return {"task": task, "algorithm": algorithm, "seed": seed, "name": name, "settings": settings}

    shared, found = {"players": "page-shared"}, []
    for task, own in TASKS.items():
        lengths = [each for each in LENGTHS.items() if own.rounds > 50 or "rounds" not in each[1]]
        for seed, algorithm in product(SEEDS, ALGORITHMS):
            for name in STARTS:
                for control, settings in CONTROLS.items():
                    more = {**settings, **start(task, name)}
                    found.append(cell(task, algorithm, seed, f"{control} {name}", **more))
            for length, short in lengths:
                for name in STARTS:
                    begun = {**start(task, name), **short}
                    found.append(cell(task, algorithm, seed, f"{name}{length}", **shared, **begun))
                    if length:
                        alone = {**CONTROLS["fixed"], **begun}
                        found.append(cell(task, algorithm, seed, f"fixed {name}{length}", **alone))
                for lr, epochs in product(own.lrs, own.epoch_grid):
                    point = {"lr": lr, "epochs": epochs, **short}
                    found.append(cell(task, algorithm, seed, f"grid {lr:g} × {epochs}{length}", **point))
        for seed in SEEDS:
            for ratio in RATIOS:
                found.append(cell(task, "fedavg", seed, f"demand {ratio}", **shared, bias=ratio))
            for price in PRICES:
                players = {"name": "page-shared", "price": price}
                found.append(cell(task, "fedavg", seed, f"price {price:g}", players=players))
    results = {key(r): r for r in known}
    return found + [more for each in found if (more := longer(each, results))]


def longer(cell: dict, known: dict[str, dict]) -> dict | None:
    """A control from the same start, for as many rounds as make its gradients those of page-shared."""
    name = cell["name"]
    control, _, begun = name.rpartition(" ")
    if control not in CONTROLS or begun not in STARTS:
        return None
    ours, theirs = known.get(key({**cell, "name": begun})), known.get(key(cell))
    if not ours or not theirs:
        return None
    rounds = round(cell["settings"]["rounds"] * ours["gradients"] / theirs["gradients"])
    return {**cell, "name": f"{name}, as many gradients", "settings": {**cell["settings"], "rounds": rounds}}


def run(cell: dict) -> dict:
    import pagefl
    from pagefl.core import personal
    from pagefl.game.game import Game
    from pagefl.runtime.machine import machine

    settings, validated = cell["settings"], {}
    choose, personal_step = personal.choose, Game.personal_step

    def chosen(losses, lr, epochs):  # type: ignore[no-untyped-def]
        step = choose(losses, lr, epochs)
        told = losses[:, personal.choices(lr, epochs).index(step)]
        validated["holdout_loss"] = round(float(told.mean()), 5)
        return step

    def stepped(game, round_):  # type: ignore[no-untyped-def]
        validated["game_loss"] = round(game.follower.half.evaluate(round_, "game")["game"][0], 5)
        return personal_step(game, round_)

    with patch.object(personal, "choose", chosen), patch.object(Game, "personal_step", stepped):
        rounds = pagefl.run(
            task=cell["task"],
            algorithm=OWN.get((cell["task"], cell["algorithm"]), cell["algorithm"]),
            seed=cell["seed"],
            judge_every=settings["rounds"],
            clients_every=0,
            workers=1,
            **settings,
        ).rounds
    wanted = KEPT_OF_GRID if cell["name"].startswith("grid") else KEPT
    last = {name: rounds[-1][name] for name in wanted}
    last = {name: round(value, 5) if isinstance(value, float) else value for name, value in last.items()}
    here = machine()
    seconds = round(sum(entry["seconds"] for entry in rounds), 1)
    return {
        **cell,
        **last,
        **validated,
        "commit": here["commit"][:10],
        "cpu": here["cpu"],
        "seconds": seconds,
    }


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
        for length in LENGTHS:
            for axes, label in (
                (("global_accuracy", "personal_accuracy"), "read off the test data"),
                (("game_loss", "holdout_loss"), "chosen on game half and hold-outs"),
            ):
                best = {algorithm: _best(mine, task, algorithm, length, axes) for algorithm in ALGORITHMS}
                if not any(best.values()):
                    continue
                cells = (
                    f"{_cell(found, a)} {found[0]['name'][5:].partition(',')[0]}" if found else ""
                    for a, found in best.items()
                )
                lines.append(f"| best of the grid{length}, {label} | {' | '.join(cells)} |")
                for name in STARTS:
                    ours = rows.get(name + length, [])
                    told = (_paired(ours, best, a) for a in ALGORITHMS)
                    lines.append(f"| {name}{length} less that | {' | '.join(told)} |")
            for name in STARTS:
                ours, alone = rows.get(name + length, []), rows.get(f"fixed {name}{length}", [])
                told = [_paired(ours, alone, a) for a in ALGORITHMS]
                if any(told):
                    lines.append(f"| {name}{length} less its start | {' | '.join(told)} |")
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


def _best(mine: list[dict], task: str, algorithm: str, length: str, axes: tuple[str, str]) -> list[dict]:
    """The results at the grid's point with the largest sum of these accuracies, or the smallest of losses.
    On the seeds that every point has been run with."""
    grid: dict[str, list[dict]] = {}
    for r in mine:
        point, comma, rest = r["name"].partition(",")
        wanted = r["algorithm"] == algorithm and point.startswith("grid") and comma + rest == length
        if wanted and all(axis in r for axis in axes):
            grid.setdefault(point, []).append(r)
    if len(grid) < len(TASKS[task].lrs) * len(TASKS[task].epoch_grid):
        return []
    seeds = set.intersection(*({r["seed"] for r in found} for found in grid.values()))
    if not seeds:
        return []
    complete = [[r for r in found if r["seed"] in seeds] for found in grid.values()]
    sign = -1 if axes[0].endswith("loss") else 1
    return max(complete, key=lambda found: sign * mean(sum(r[axis] for axis in axes) for r in found))


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
    parser.add_argument("--only", default="", help="cells whose key has all of these words")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    if given.figure:
        draw(read(given.results), given.figure)
        return
    if given.table:
        print(tables(read(given.results)))
        return
    known = read(given.results)
    done = {key(r) for r in known}
    wanted = [c for c in cells(known) if key(c) not in done]
    wanted = [c for c in wanted if all(w in f"{key(c)} seed{c['seed']}" for w in given.only.split("+") if w)]
    with ProcessPoolExecutor(given.jobs) as pool:
        for each in as_completed([pool.submit(run, c) for c in wanted]):
            with given.results.open("a") as file:
                file.write(json.dumps(each.result(), ensure_ascii=False) + "\n")
            print(key(each.result()), flush=True)


if __name__ == "__main__":
    main()
