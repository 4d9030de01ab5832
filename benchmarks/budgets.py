"""The first results of docs/resources.md: digits on phones, with and without budgets, one seed at a time.

python benchmarks/budgets.py 0
"""

import sys

import pagefl
from pagefl.runtime.run import Run

PHONES = {"name": "phones", "hours": 24.0, "reference": 0.0}


def main(seed: int, rounds: int = 60) -> None:
    def run(players: object, **devices: object) -> Run:
        return pagefl.run(
            task="digits", rounds=rounds, seed=seed, players=players, devices={**PHONES, **devices}
        )

    fixed = run("fixed")
    budget = float(fixed.clients.query("round == 1").seconds.median())
    runs = {
        "fixed": fixed,
        "dropping": run("fixed", barrier="deadline", deadline=budget),
        "scaled": run("scaled"),
        "page-shared": run("page-shared"),
        "page-shared, budget": run({"name": "page-shared", "budget": budget}),
    }
    target = fixed.history.global_accuracy.iloc[-1]
    print(f"budget {budget:.2f} s, accuracy of fixed {target:.4f}")
    for name, found in runs.items():
        history = found.history
        by_then = history[history.clock <= budget * rounds + 1].global_accuracy.max()
        reached = history[history.global_accuracy >= target].clock.min()
        print(
            f"{name:20} {by_then:.4f} by then, target after {reached:.0f} s of {history.clock.iloc[-1]:.0f}"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
