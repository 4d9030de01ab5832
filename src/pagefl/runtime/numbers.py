"""Reads records as plausible numbers. Records of someone else's run may hold any JSON value."""

from collections.abc import Mapping, Sequence
from math import isfinite

from pagefl.core.errors import UserError

Numbers = dict[str, float | None]

MOST = 10**9  # largest count, and most seconds
LARGEST, SMALLEST = 3.4e38, 1e-30  # of a float32 loss; beyond them a chart's axis freezes the browser
COUNTS = ("round", "participants", "quarantined", "missing", "late", "stale")
ACCURACIES = (
    *("global_accuracy", "local_accuracy", "local_accuracy_before", "local_std", "local_worst10"),
    *("personal_accuracy", "personal_worst10", "global_chance", "local_slowest", "local_fastest"),
)
FREE = (  # `payoffs.server` is an entry of the table `payoffs`
    *(
        "global_loss",
        "local_loss",
        "train_loss",
        "mean_lr",
        "mean_epochs",
        "largest_weight",
        "smallest_weight",
    ),
    *("gradients", "gradients_personal", "bytes_down", "bytes_up", "epsilon", "clip"),
    *("clock", "device_seconds", "energy", "over_deadline"),
    *("mean_multiplier", "over_budget", "server_multiplier", "server_used"),
    *("reward_server", "reward_clients", "payoffs.server", "payoffs.clients"),
    *("agents.clients_critic", "agents.server_critic"),
)
RANGES = {
    **dict.fromkeys((*COUNTS, "seconds"), (0, MOST)),
    **dict.fromkeys(ACCURACIES, (0, 1)),
    **dict.fromkeys(FREE, (-LARGEST, LARGEST)),
}
TABLES = ("payoffs", "agents")


def wrong_in_round(record: Mapping[str, object]) -> str | None:
    """The first entry of a round's record that is not what a run writes; None if there is none."""
    if _column(record, "round") is None:
        return "round"
    entries: dict[str, object] = {name: _entry(record, name) for name in RANGES if "." not in name}
    for table in TABLES:
        values = record.get(table, {})
        entries |= (
            {f"{table}.{name}": value for name, value in values.items()}
            if isinstance(values, dict)
            else {table: values}
        )
    return next((name for name, value in entries.items() if not (value is None or _is_number(value))), None)


def wrong_in_clients(record: Mapping[str, object]) -> str | None:
    """The same for a record of every client's numbers: lists of equal length."""
    if _column(record, "round") is None:
        return "round"
    accuracies = record.get("local_accuracy")
    clients = len(accuracies) if isinstance(accuracies, list) else None
    for name, values in record.items():
        if name != "round" and not (
            isinstance(values, list) and len(values) == clients and all(map(_is_clients, values))
        ):
            return name
    return "local_accuracy" if clients is None else None


def of_rounds(records: Sequence[object], run: str) -> list[Numbers]:
    """The numbers that reports show of each record: plausible ones, or None.

    Raises if a record has no round number.
    """
    found = []
    for line, record in enumerate(records, 1):
        numbers = {column: _column(record, column) for column in RANGES}
        if numbers["round"] is None:
            raise UserError(
                f"{run}: line {line} of rounds.jsonl has no round number; the records are damaged, "
                "restore them"
            )
        found.append(numbers)
    return found


def of_clients(record: object) -> list[float]:
    """The clients' local accuracies, without implausible values."""
    values = _entry(record, "local_accuracy")
    known = (
        (_number(value, *RANGES["local_accuracy"]) for value in values) if isinstance(values, list) else ()
    )
    return [value for value in known if value is not None]


def _column(record: object, column: str) -> float | None:
    table, _, name = column.rpartition(".")
    value = _number(_entry(_entry(record, table) if table else record, name), *RANGES[column])
    if value is None or column not in COUNTS:
        return value
    return int(value) if value.is_integer() else None


def _number(value: object, low: float, high: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:  # or NaN
        return None
    return float(value) if abs(value) >= SMALLEST else 0.0


def _is_number(value: object) -> bool:
    """Also of implausible ones. A whole number may be too large for a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isfinite(value) if isinstance(value, float) else abs(value) <= LARGEST


def _is_clients(value: object) -> bool:
    return value is None or isinstance(value, bool) or _is_number(value)


def _entry(table: object, name: str) -> object:
    return table.get(name) if isinstance(table, dict) else None
