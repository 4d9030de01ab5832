"""Every algorithm on Synthetic with the paper's settings, three seeds, 100 rounds: the numbers of
docs/algorithms.

python benchmarks/baselines.py RESULTS.jsonl --jobs 2       runs what RESULTS.jsonl does not hold yet
python benchmarks/baselines.py RESULTS.jsonl --table
"""

import learning
from learning import SEEDS, main, spread

ALGORITHMS = ("fedavg", "fedprox", "scaffold", "feddyn", "pfedme", "ditto", "fedala", "fedrod", "local")
ROUNDS = 100
# models with a body and a head
SPLIT = {"task": "synthetic-mlp", "rounds": ROUNDS, "epochs": 2, "clients": 40}


def plan() -> list[dict]:
    jobs = [
        {"rule": rule, "seed": seed, "name": "fixed", "settings": {"rounds": ROUNDS}}
        for seed in SEEDS
        for rule in ALGORITHMS
    ]
    split = ("fedavg", "fedrecon", "fedrod", "fedala")
    return jobs + [
        {"rule": rule, "seed": seed, "name": "synthetic-mlp", "settings": SPLIT}
        for seed in SEEDS
        for rule in split
    ]


def table(results: list[dict]) -> str:
    lines = [
        "| task | algorithm | global, last | local, last | global, best | local, best |",
        "|---|---|---|---|---|---|",
    ]
    for name, task in (
        ("fixed", f"Synthetic, {ROUNDS} rounds"),
        ("synthetic-mlp", "Synthetic, one hidden layer, 40 clients, 2 epochs"),
    ):
        for rule in dict.fromkeys(entry["rule"] for entry in plan() if entry["name"] == name):
            found = [entry for entry in results if (entry["rule"], entry["name"]) == (rule, name)]
            if found:
                cells = [
                    spread([r[when][what] for r in found])
                    for when in ("last", "best")
                    for what in learning.KEEP[:2]
                ]
                lines.append(f"| {task} | {rule} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(plan, table, __doc__)
