"""Label flipping. Tolpegin, Truex, Gursoy, Liu: Data Poisoning Attacks Against Federated Learning Systems.
ESORICS 2020."""

from dataclasses import replace

from pagefl.core.arrays import Integers
from pagefl.core.examples import Examples, Splits


def labelflip(data: Splits, hostile: Integers) -> Splits:
    """Hostile clients train on wrong labels: the last class in place of the first, and so on."""
    last = max(int(examples.y.max()) for _, examples in data.named())

    def flipped(examples: Examples) -> Examples:
        y = examples.y.clone()
        for client in hostile.tolist():
            own = slice(int(examples.starts[client]), int(examples.starts[client + 1]))
            y[own] = last - y[own]
        return replace(examples, y=y)

    held = data.holdout
    return Splits(
        flipped(data.train), data.test, data.game, data.server_test, None if held is None else flipped(held)
    )
