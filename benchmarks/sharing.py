"""Does page-shared earn its keep? Synthetic at the paper's size: four rules, players of six kinds and a grid, 1000 rounds.

    python benchmarks/sharing.py RESULTS.jsonl --jobs 2        runs what RESULTS.jsonl does not hold yet
    python benchmarks/sharing.py RESULTS.jsonl --table         prints the tables of docs/results/sharing.md

Seeds 0, 1 and 2 were for development and for the ablations; the first table is of others. The best fixed setting is chosen,
for each rule and seed, by training loss plus loss on the server's game half: no test split decides anything.
"""

from statistics import mean

import pandas as pd
from learning import best_of_grid, main, spread

from pagefl.experiments.statistics import difference

RULES, SEEDS, DEVELOPMENT, ROUNDS = ("fedavg", "feddyn", "scaffold", "ditto"), (3, 4, 5, 6, 7), (0, 1, 2), 1000
GRID = [(lr, epochs) for lr in (0.001, 0.005, 0.02, 0.1) for epochs in (1, 5, 20)]
SHARED = {"name": "page-shared"}
PLAYERS: dict[str, dict] = {
    "page-shared": {"players": SHARED},
    "fixed": {},
    "schedule": {"players": "schedule"},
    "random": {"players": "random"},
    "PAGE, literal": {"players": "page"},
}
# Each is the whole with one part taken away or changed.
ABLATIONS: dict[str, dict] = {
    "page-shared": {"players": SHARED},
    "by weights": {"players": {**SHARED, "share": "weights"}},
    "no landing": {"players": {**SHARED, "landing": 0.0}},
    "server alone": {"players": SHARED, "freeze": ["alpha", "eta"]},
    "landing alone": {"players": {**SHARED, "explore": 0.0}, "freeze": ["p"]},
    "weights by size": {"players": SHARED, "freeze": ["p"]},
    "no caution": {"players": {**SHARED, "caution": 0.0}},
    "explores to the landing": {"players": {**SHARED, "explore": 0.8}},
}
DEMANDS: dict[str, dict] = {f"page-shared {ratio}": {"players": SHARED, "bias": ratio} for ratio in ("10:1", "1:10")}


def plan() -> list[dict]:
    def jobs(rules: tuple[str, ...], seeds: tuple[int, ...], kinds: dict[str, dict]) -> list[dict]:
        return [
            {"rule": rule, "seed": seed, "name": name, "settings": {"rounds": ROUNDS, **own}}
            for seed in seeds
            for rule in rules
            for name, own in kinds.items()
        ]

    grid = {f"grid {lr} {epochs}": {"lr": lr, "epochs": epochs} for lr, epochs in GRID}
    return [
        *jobs(RULES, SEEDS, PLAYERS),
        *jobs(("fedavg",), SEEDS, DEMANDS),
        *jobs(RULES, SEEDS, grid),
        *jobs(RULES[:3], DEVELOPMENT, ABLATIONS),
    ]


def table(results: list[dict]) -> str:
    chosen = [
        {**best, "name": "best of the grid"}
        for rule in RULES
        for seed in SEEDS
        for best in best_of_grid(results, rule, seed, GRID)
    ]
    played = [r for r in results if not r["name"].startswith("grid")]
    lines = []
    for title, seeds, kinds in (
        ("reported", SEEDS, [*PLAYERS, "best of the grid", *DEMANDS]),
        ("ablations", DEVELOPMENT, list(ABLATIONS)),
    ):
        frame = pd.DataFrame(
            {
                "rule": r["rule"],
                "method": r["name"],
                "seed": r["seed"],
                "global": 100 * r["last"]["global_accuracy"],
                "local": 100 * r["last"]["local_accuracy"],
                "sum": 100 * (r["last"]["global_accuracy"] + r["last"]["local_accuracy"]),
                "epochs": r["epochs_spent"] / ROUNDS,
            }
            for r in [*played, *chosen]
            if r["seed"] in seeds and r["name"] in kinds
        )
        lines += [
            "",
            title,
            "",
            "| rule | players | global | local | sum | epochs a round | page-shared gains globally | locally |",
        ]
        lines += ["|---|---|---|---|---|---|---|---|"]
        for rule in RULES if len(frame) else ():
            of_rule = frame[frame["rule"] == rule]
            for name in kinds:
                rows = of_rule[of_rule["method"] == name]
                if rows.empty:
                    continue
                cells = [spread(rows[what].tolist(), 2) for what in ("global", "local", "sum")]
                gains = ["", ""] if name == "page-shared" else [gain(of_rule, name, what) for what in ("global", "local")]
                lines.append(f"| {rule} | {name} | {' | '.join(cells)} | {mean(rows['epochs']):.1f} | {' | '.join(gains)} |")
    return "\n".join(lines)


def gain(frame: pd.DataFrame, other: str, what: str) -> str:
    """Paired by seed, with a 95 % interval."""
    found = difference(frame, "page-shared", other, what)
    return f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


if __name__ == "__main__":
    main(plan, table, __doc__)
