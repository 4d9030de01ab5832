"""What page-shared is worth in a short run on real data: three small tasks, 15 or 20 rounds, against a small
grid.

    python benchmarks/sharing_small.py RESULTS.jsonl --jobs 2     runs what is not in RESULTS.jsonl yet
    python benchmarks/sharing_small.py RESULTS.jsonl --table      prints the table of docs/results/sharing.md

The sizes are those of `pagefl reproduce table1 --scale laptop`. Shakespeare is on FedDyn's rule: on FedAvg's
nothing leaves the most frequent character in so few rounds. Who draws epochs draws at most four, as there.

By itself page-shared does not explore in so short a run. "Exploring" is made to: for half of it, after two
rounds of warm-up, and with so many updates a round that there are in all about as many as in a thousand
rounds.
"""

from learning import main

from pagefl.experiments.spec import put
from pagefl.experiments.tasks import TASKS

SEED, EPOCHS_MAX = 3, 4
RULES = {"cifar100": "fedavg", "shakespeare": "feddyn", "tiny-imagenet": "fedavg"}
GRID = {  # beside the fixed setting: lr 0.1, 1 and 0.1, one epoch
    "cifar100": [(0.05, 1), (0.2, 1), (0.1, 4), (0.2, 4)],
    "shakespeare": [(0.3, 1), (0.3, 4), (1.0, 4)],
    "tiny-imagenet": [(0.05, 1), (0.1, 4)],
}
PLAYERS: dict[str, dict] = {
    "page-shared": {"players": "page-shared"},
    "page-shared, exploring": {
        "players": {
            "name": "page-shared",
            "explore": 0.5,
            "warm_up": 2,
            "updates": 120,
            "epochs_max": EPOCHS_MAX,
        }
    },
    "fixed": {},
    "schedule": {"players": "schedule"},
    "random": {"players": {"name": "random", "epochs_max": EPOCHS_MAX}},
    "PAGE, literal": {"players": {"name": "page", "epochs_max": EPOCHS_MAX}},
}


def plan() -> list[dict]:
    jobs = []
    for task, rule in RULES.items():
        grid = {f"grid {lr} {epochs}": {"lr": lr, "epochs": epochs} for lr, epochs in GRID[task]}
        size: dict = {"task": f"{task}-small"}
        for name, value in TASKS[task].small.laptop.items():
            put(size, name, value)
        for name, settings in {**PLAYERS, **grid}.items():
            jobs.append(
                {"rule": rule, "seed": SEED, "name": f"{task}: {name}", "settings": {**size, **settings}}
            )
    return jobs


def table(results: list[dict]) -> str:
    found = [
        "| task | rule | players | global | local | sum | epochs a round |",
        "|---|---|---|---|---|---|---|",
    ]
    of = {result["name"]: result for result in results}
    for job in plan():
        if result := of.get(job["name"]):
            task, players = job["name"].split(": ")
            here, there = (100 * result["last"][f"{side}_accuracy"] for side in ("global", "local"))
            spent = result["epochs_spent"] / job["settings"]["rounds"]
            found.append(
                f"| {task} | {job['rule']} | {players} | {here:.2f} | {there:.2f} | {here + there:.2f} | "
                f"{spent:.1f} |"
            )
    return "\n".join(found)


if __name__ == "__main__":
    main(plan, table, __doc__)
