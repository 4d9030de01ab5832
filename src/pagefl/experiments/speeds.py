"""How fast and slow clients of a run fared, from the clients' records of its rounds."""

from collections.abc import Sequence

from pagefl.game.account import ROUNDING
from pagefl.runtime.record import Record, finite

COLUMNS = ("over_deadline", "local_slowest", "local_fastest")
FIFTH = 5


def of_clients(clients: Sequence[Record], deadline: float) -> Record:
    """The share of clients' rounds in the second half of a run that lasted longer than the deadline, and the
    accuracies of the slowest and the fastest fifth of all clients.

    A client's speed is what an epoch cost it in its last round, and its accuracy the last that was measured.
    """
    half, over, epoch, accuracy = clients[-1]["round"] / 2, [], {}, {}
    for entry in clients:
        numbers = entry.get("client", range(len(entry["local_accuracy"])))
        told = (entry[name] for name in ("seconds", "epochs", "local_accuracy"))
        for client, seconds, epochs, measured in zip(numbers, *told, strict=True):
            if measured is not None:
                accuracy[client] = measured
            if seconds is not None:
                epoch[client] = seconds / epochs
                over += [seconds > deadline * (1 + ROUNDING)] if entry["round"] > half else []
    order = sorted(accuracy.keys() & epoch.keys(), key=lambda client: (epoch[client], client))
    few = max(1, len(order) // FIFTH)
    return {
        "over_deadline": _mean(over) if deadline else None,
        "local_slowest": _mean([accuracy[client] for client in order[-few:]]),
        "local_fastest": _mean([accuracy[client] for client in order[:few]]),
    }


def _mean(values: Sequence[float]) -> float | None:
    return finite(sum(values) / len(values)) if values else None
