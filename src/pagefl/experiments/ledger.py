"""A ledger of finished runs: one short line each. It keeps a table's numbers where its runs are not kept.

A run in the ledger is not run again. A line has the accuracies of the rounds in which they were measured, and
all that tables show of the last one.
"""

import json
from pathlib import Path
from typing import Any

from pagefl.core.errors import UserError
from pagefl.runtime import numbers
from pagefl.runtime.machine import machine
from pagefl.runtime.record import Record

from . import speeds

NAME = "finished.jsonl"
CURVES = ("global_accuracy", "local_accuracy", "reward_server", "reward_clients", "clock")
LAST = (
    *("local_accuracy_before", "local_std", "local_worst10", "personal_accuracy", "personal_worst10"),
    *("gradients", "gradients_personal"),
)


def append(ledger: Path, name: str, rounds: list[Record]) -> None:
    here, last = machine(), rounds[-1]
    judged = [entry for entry in rounds if entry["global_accuracy"] is not None]
    curves = {column: [_short(entry.get(column)) for entry in judged] for column in CURVES}
    line = {
        "name": name,
        "commit": here["commit"],
        "cpu": here["cpu"],
        "seconds": round(sum(entry["seconds"] for entry in rounds), 1),
        "rounds": last["round"],
        "judged": [entry["round"] for entry in judged],
        **{column: values for column, values in curves.items() if any(v is not None for v in values)},
        **{column: _short(last[column]) for column in LAST},
        **{column: _short(last[column]) for column in speeds.COLUMNS if column in last},
        "personal_step": last["personal_step"],
    }
    with ledger.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read(ledger: Path) -> dict[str, list[Record]]:
    """The rounds of each run by its name, as far as the ledger has them."""
    if not ledger.exists():
        return {}
    found = {}
    for number, line in enumerate(ledger.read_text(encoding="utf-8").splitlines(), 1):
        try:
            name, rounds = _rounds(json.loads(line))
            numbers.of_rounds(rounds, name)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UserError(f"{ledger}: line {number} is not a finished run; restore the file") from None
        found[name] = rounds
    return found


def _rounds(line: dict[str, Any]) -> tuple[str, list[Record]]:
    if not isinstance(line["name"], str) or not 0 < int(line["rounds"]) <= 10**7:
        raise ValueError
    rounds: list[Record] = [{"round": number, "seconds": 0.0} for number in range(1, int(line["rounds"]) + 1)]
    for column in CURVES:
        for number, value in zip(line["judged"], line.get(column, ()), strict=False):
            rounds[number - 1][column] = value
    timed = [column for column in speeds.COLUMNS if column in line]  # of runs with simulated time
    rounds[-1] |= {column: line[column] for column in (*LAST, *timed)} | {"seconds": line["seconds"]}
    return line["name"], rounds


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
