"""Every client's numbers as heat maps, and by class of device: some rounds, however many there are."""

import json
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pagefl.core.errors import UserError
from pagefl.runtime import facts, numbers
from pagefl.runtime.by_class import Classes, ClassNumbers, classes_of, drawn, of_round, summary
from pagefl.runtime.record import CLIENTS

from .lines import Samples
from .runs import stamp_of

MOST_ROUNDS, MOST_CLIENTS = 160, 200
METRICS = (
    *("lr", "epochs", "weight", "local_accuracy", "reward", "train_loss", "personal_accuracy"),
    *("seconds", "multiplier", "used"),
)
Cells = list[float | None]


class Round(NamedTuple):
    """What is shown of one line of the file."""

    round: int
    clients: int  # in all
    values: dict[str, Cells]  # by metric: of every step-th client
    by_class: ClassNumbers | None  # where clients have devices


class ClientRounds:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.stamp = (0, 0)  # of the checkpoint
        self._begin(None)

    def _begin(self, classes: Classes | None) -> None:
        self.classes = classes
        parsed = partial(parse, classes=classes)
        self.samples: Samples[Round] = Samples(self.path / CLIENTS, MOST_ROUNDS, parsed)
        self.rounds: list[Round] = []

    def look(self) -> int:
        """Read on. Returns the last round that is recorded; 0 if there is none."""
        self._look_for_classes()
        self.rounds = self.samples.look()
        return self.rounds[-1].round if self.rounds else 0

    def by_class(self) -> dict[str, Any]:
        """A line for each measure and class, and what the rounds that are shown come to."""
        known = [(one.round, one.by_class) for one in self.rounds if one.by_class]
        if self.classes is None or not known:
            return {"names": [], "rounds": [], "lines": {}, "table": {}}
        found = [own for _, own in known]
        places = range(len(self.classes.names))
        return {
            "names": self.classes.names,
            "rounds": [round for round, _ in known],
            "lines": {
                name: [[_short(one[name][place]) for one in found] for place in places]
                for name in drawn(found)
            },
            "table": summary(found, self.classes),
        }

    def _look_for_classes(self) -> None:
        """They are in every checkpoint. If a run that began again has others, all is read again."""
        stamp = stamp_of(self.path / facts.NAME)
        if stamp == self.stamp:
            return
        self.stamp = stamp
        with suppress(UserError):
            found = classes_of(facts.read_facts(self.path / facts.NAME))
            if (found and found.facts) != (self.classes and self.classes.facts):
                self._begin(found)

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


def parse(line: bytes, classes: Classes | None = None) -> Round | None:
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
    by_class = of_round(entry, classes) if classes and len(classes.of) == clients else None
    return Round(entry["round"], clients, values, by_class)


def _known(one: Round, metric: str) -> bool:
    return any(value is not None for value in one.values.get(metric, ()))


def _short(value: float | None) -> float | None:
    return None if value is None or abs(value) > numbers.LARGEST else float(f"{value:.4g}")
