"""Whether two versions of the package compute the same bits: every algorithm with every kind of players, on
Synthetic.

    python benchmarks/same_bits.py OTHER_CHECKOUT

runs both versions on this machine, in a process each. It compares global_loss and local_accuracy of every
round, and the final model. synthetic-mlp takes the place of Synthetic where an algorithm needs a model with a
body.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]
PLAYERS: dict[str, tuple[dict[str, Any], int]] = {  # settings by which agents learn early, and rounds
    "fixed": ({}, 30),
    "random": ({}, 30),
    "schedule": ({}, 30),
    "dapfl": ({"warm_up": 5}, 40),
    "page": ({"warm_up": 5}, 40),
    "page-shared": ({"explore": 0.6}, 30),
}
VARIANTS: list[dict[str, Any]] = [
    {"algorithm": "fedavg", "players": {"name": "page", "warm_up": 5}, "protocol": "released", "rounds": 40},
    {
        "algorithm": "fedavg",
        "players": {"name": "page", "warm_up": 5},
        "reward": "weighted-local",
        "holdout": 0.2,
    },
    {
        "algorithm": "scaffold",
        "players": {"name": "page-shared", "explore": 0.6},
        "freeze": ["p"],
    },
    {"task": {"name": "synthetic-mlp", "clients": 10}, "algorithm": "fedala", "chunk": 3},
    {
        "task": {"name": "synthetic-mlp", "clients": 10},
        "algorithm": "pfedme",
        "players": "page-shared",
        "path": "stacked",
    },
    {
        "task": {"name": "synthetic-mlp", "clients": 10},
        "algorithm": "fedrecon",
        "players": "page-shared",
        "workers": 2,
    },
]


def cases() -> Iterator[dict[str, Any]]:
    from pagefl.algorithms import ALGORITHMS

    for algorithm, kind in ALGORITHMS.items():
        for players, (settings, rounds) in PLAYERS.items():
            for participation in (1.0, 0.4):
                task = "synthetic-mlp" if kind.needs_body else "synthetic"
                yield {
                    "task": {"name": task, "clients": 10},
                    "algorithm": algorithm,
                    "players": {"name": players, **settings},
                    "rounds": rounds,
                    "participation": participation,
                }
    yield from VARIANTS


def fingerprints() -> dict[str, str]:
    import pagefl

    found = {}
    for case in cases():
        run = pagefl.run(
            **{"task": {"name": "synthetic", "clients": 10}, "rounds": 30, "epochs": 2, "workers": 1, **case}
        )
        curves = [(entry["global_loss"], entry["local_accuracy"]) for entry in run.rounds]
        digest = sha256(run.state["server.model"].numpy().tobytes() + json.dumps(curves).encode())
        found[json.dumps(case)] = digest.hexdigest()
    return found


def of_version(root: Path) -> dict[str, str]:
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    command = [sys.executable, __file__, "--print"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)  # noqa: S603 (ourselves)
    return dict(json.loads(done.stdout))


def main() -> int:
    if sys.argv[1:] == ["--print"]:
        print(json.dumps(fingerprints()))
        return 0
    ours, theirs = of_version(HERE), of_version(Path(sys.argv[1]))
    different = [name for name in theirs if ours.get(name) != theirs[name]]
    for name in different:
        print(f"differs: {name}")
    print(f"{len(theirs) - len(different)} of {len(theirs)} runs have the same bits")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
