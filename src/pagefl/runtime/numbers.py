"""Reads records as plausible numbers. Records of someone else's run may hold any JSON value."""

from collections.abc import Sequence

from pagefl.core.errors import UserError

Numbers = dict[str, float | None]

MOST = 10**9  # largest count, and most seconds
LARGEST, SMALLEST = 3.4e38, 1e-30  # of a float32 loss; beyond them a chart's axis freezes the browser
COUNTS = ("round", "participants")
ACCURACIES = ("global_accuracy", "local_accuracy", "local_accuracy_before", "local_std", "local_worst10")
FREE = (  # `agents.clients_critic` is an entry of the table `agents`
    *(
        "global_loss",
        "local_loss",
        "train_loss",
        "mean_lr",
        "mean_epochs",
        "largest_weight",
        "smallest_weight",
    ),
    *("reward_server", "reward_clients", "agents.clients_critic", "agents.server_critic"),
)
RANGES = {
    **dict.fromkeys((*COUNTS, "seconds"), (0, MOST)),
    **dict.fromkeys(ACCURACIES, (0, 1)),
    **dict.fromkeys(FREE, (-LARGEST, LARGEST)),
}


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


def _entry(table: object, name: str) -> object:
    return table.get(name) if isinstance(table, dict) else None
