"""The truth about learning on Synthetic: three rules, seven kinds of players, three seeds, 300 rounds.

    python benchmarks/learning.py RESULTS.jsonl --jobs 2        runs what RESULTS.jsonl does not hold yet
    python benchmarks/learning.py RESULTS.jsonl --table         prints the table of docs/results/learning.md

The best fixed setting is chosen, for each rule and seed, by training loss plus loss on the server's game
half: no test split decides anything.
"""

import argparse
import json
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import mean, stdev

RULES, SEEDS, ROUNDS = ("fedavg", "feddyn", "scaffold"), (0, 1, 2), 300
GRID = [(lr, epochs) for lr in (0.001, 0.005, 0.02, 0.05, 0.1) for epochs in (1, 5, 10, 20)]
PLAYERS: dict[str, dict] = {
    "fixed": {"players": "fixed"},
    "schedule": {"players": "schedule"},
    "random": {"players": "random"},
    "Dap-FL": {"players": "dapfl"},
    "PAGE, literal": {"players": "page"},
    "PAGE, holdout": {"players": "page", "holdout": 0.1},
}
Draw = Callable[[list[dict], Path], None]
KEEP = (
    "global_accuracy",
    "local_accuracy",
    "train_loss",
    "game_loss",
    "mean_lr",
    "mean_epochs",
    "quarantined",
)


def plan() -> list[dict]:
    played = [
        {"rule": rule, "seed": seed, "name": name, "settings": own}
        for seed in SEEDS
        for name, own in PLAYERS.items()
        for rule in RULES
    ]
    grid = [
        {"rule": rule, "seed": seed, "name": f"grid {lr} {epochs}", "settings": {"lr": lr, "epochs": epochs}}
        for seed in SEEDS
        for rule in RULES
        for lr, epochs in GRID
    ]
    return played + grid


def run(job: dict) -> dict:
    import pagefl

    options = {
        "task": "synthetic",
        "rounds": ROUNDS,
        **job["settings"],
        "algorithm": job["rule"],
        "seed": job["seed"],
    }
    rounds = pagefl.run(clients_every=0, workers=1, **options).rounds
    last = {name: rounds[-1][name] for name in KEEP}
    best = {name: max(entry[name] for entry in rounds) for name in KEEP[:2]}
    spent = sum(entry["mean_epochs"] for entry in rounds)
    every = max(1, len(rounds) // 100)
    shown = ("global_accuracy", "local_accuracy", "mean_lr", "mean_epochs")
    curve = {name: [round(entry[name], 5) for entry in rounds[every - 1 :: every]] for name in shown}
    return {
        **job,
        "last": last,
        "best": best,
        "epochs_spent": spent,
        "curve": curve,
        "seconds": sum(e["seconds"] for e in rounds),
    }


def key(entry: dict) -> str:
    return json.dumps([entry["rule"], entry["seed"], entry["name"]])


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(results: list[dict]) -> str:
    lines = [
        "| rule | players | global, last | local, last | global, best | local, best | epochs a round |",
        "|---|---|---|---|---|---|---|",
    ]
    for rule in RULES:
        rows = {name: [r for r in results if r["rule"] == rule and r["name"] == name] for name in PLAYERS}
        chosen = []
        for seed in SEEDS:
            chosen += best_of_grid(results, rule, seed, GRID)
        picked = ", ".join(r["name"].removeprefix("grid ").replace(" ", "/") for r in chosen)
        rows = {"fixed": rows.pop("fixed"), f"best fixed of the grid ({picked})": chosen, **rows}
        for name, found in rows.items():
            if found:
                cells = [
                    spread([r[when][what] for r in found]) for when in ("last", "best") for what in KEEP[:2]
                ]
                epochs = f"{mean(r['epochs_spent'] for r in found) / ROUNDS:.1f}"
                lines.append(f"| {rule} | {name} | {' | '.join(cells)} | {epochs} |")
    return "\n".join(lines)


def best_of_grid(results: list[dict], rule: str, seed: int, grid: list[tuple[float, int]]) -> list[dict]:
    """None before the grid is complete."""
    found = [r for r in results if (r["rule"], r["seed"]) == (rule, seed) and r["name"].startswith("grid")]
    if len(found) < len(grid):
        return []
    return [min(found, key=lambda r: (r["last"]["train_loss"] or 1e9) + (r["last"]["game_loss"] or 1e9))]


def spread(values: list[float], digits: int = 4) -> str:
    return f"{mean(values):.{digits}f}" + (f" ± {stdev(values):.{digits}f}" if len(values) > 1 else "")


def main(
    plan: Callable[[], list[dict]],
    table: Callable[[list[dict]], str],
    about: str | None,
    draw: Draw | None = None,
) -> None:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--table", action="store_true")
    if draw:
        parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    if arguments.table:
        print(table(read(arguments.results)))
        return
    if draw and arguments.figure:
        draw(read(arguments.results), arguments.figure)
        return
    done = {key(entry) for entry in read(arguments.results)}
    with ProcessPoolExecutor(arguments.jobs) as pool, arguments.results.open("a") as file:
        for future in as_completed([pool.submit(run, job) for job in plan() if key(job) not in done]):
            result = future.result()
            file.write(json.dumps(result) + "\n")
            file.flush()
            last = result["last"]
            print(
                f"{key(result)} {last['global_accuracy']:.4f} {last['local_accuracy']:.4f} "
                f"{result['seconds']:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main(plan, table, __doc__)
