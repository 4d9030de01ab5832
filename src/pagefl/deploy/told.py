"""What clients tell of themselves, and what each number can be. A lie within its range cannot be told from the truth."""

from collections.abc import Mapping, Set
from math import isnan

ACCURACY = (0.0, 1.0)
LOSS = (-1e-3, 1e9)  # rounding may leave it just below zero
AGENT_LOSS = (-1e30, 1e30)  # of an agent that is paid up to 1e9 in a round, squared
RANGES = {
    "number": (0, 1e9),
    "size": (1, 1e9),
    **dict.fromkeys(("test_accuracy", "before_accuracy"), ACCURACY),
    **dict.fromkeys(("test_loss", "before_loss", "train_loss"), LOSS),
    "lr": (1e-12, 1e6),
    "epochs": (1, 1e6),
    "reward": (0, 1e9),  # one over a loss, which has a floor
    **dict.fromkeys(("critic_loss", "actor_loss"), AGENT_LOSS),
}
WHOLE = ("number", "size", "epochs")
UNTOLD_IN_A_ROUND = {"critic_loss", "actor_loss"}  # before an agent learns, and where there is none
UNTOLD_AT_FIRST = {"lr", "epochs", "reward", *UNTOLD_IN_A_ROUND}  # nothing has been played


def implausible(told: Mapping[str, float], untold: Set[str]) -> str | None:
    """Why it is not to be believed. `untold`: what may be NaN, which stands for "not told"."""
    for name, value in told.items():
        low, high = RANGES[name]
        if isnan(value):
            if name not in untold:
                return f"it does not tell its {name}"
        elif not low <= value <= high or (name in WHOLE and value % 1):
            return f"its {name} is {value:.6g}, expected {'a whole number ' if name in WHOLE else ''}from {low:g} to {high:g}"
    return None
