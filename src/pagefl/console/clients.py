"""Every client's numbers as heat maps: some rounds, some clients, however many there are."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from pagefl.runtime import numbers
from pagefl.runtime.record import CLIENTS

from .lines import Samples

MOST_ROUNDS, MOST_CLIENTS = 160, 200
METRICS = ("lr", "epochs", "weight", "local_accuracy", "reward", "train_loss", "personal_accuracy")
Cells = list[float | None]


class Round(NamedTuple):
    """What is shown of one line of the file."""

    round: int
    clients: int  # in all
    values: dict[str, Cells]  # by metric: of every step-th client


class HeatMaps:
    def __init__(self, path: Path) -> None:
        self.samples: Samples[Round] = Samples(path / CLIENTS, MOST_ROUNDS, parse)
        self.rounds: list[Round] = []

    def look(self) -> int:
        """Read on. Returns the last round that is recorded; 0 if there is none."""
        self.rounds = self.samples.look()
        return self.rounds[-1].round if self.rounds else 0

    def of(self, metric: str) -> dict[str, Any]:
        """A column for each round that is shown, a row for each client."""
        known = [one for one in self.rounds if metric in one.values]
        clients = known[-1].clients if known else 0
        shown = [one for one in known if one.clients == clients]
        return {
            "metrics": [name for name in METRICS if any(_known(one, name) for one in self.rounds)],
            "rounds": [one.round for one in shown],
            "clients": list(range(0, clients, step_of(clients))),
            "of": clients,
            "columns": [one.values[metric] for one in shown],
        }


def step_of(clients: int) -> int:
    return max(1, -(-clients // MOST_CLIENTS))


def parse(line: bytes) -> Round | None:
    """None if the line is not what a run writes."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or numbers.wrong_in_clients(entry):
        return None
    clients = len(entry["local_accuracy"])
    step = step_of(clients)
    values = {name: [_short(value) for value in entry[name][::step]] for name in METRICS if name in entry}
    return Round(entry["round"], clients, values)


def _known(one: Round, metric: str) -> bool:
    return any(value is not None for value in one.values.get(metric, ()))


def _short(value: float | None) -> float | None:
    return None if value is None or abs(value) > numbers.LARGEST else float(f"{value:.4g}")
