"""Numbers that clients report, and their valid ranges. A false number within its range is not detected."""

from collections.abc import Mapping, Set
from math import isnan

ACCURACY = (0.0, 1.0)
LOSS = (-1e-3, 1e9)  # rounding may give a value just below zero
AGENT_LOSS = (-1e30, 1e30)  # squared, for rewards of up to 1e9 per round
HOLDOUT = tuple(f"holdout_{i}" for i in range(200))  # more than there are choices of a personal step
RANGES = {
    "number": (0, 1e9),
    "size": (1, 1e9),
    "gradients": (0, 1e15),
    "seconds": (0, 1e9),
    **dict.fromkeys(("test_accuracy", "before_accuracy", "personal_accuracy"), ACCURACY),
    **dict.fromkeys(("test_loss", "before_loss", "train_loss", *HOLDOUT), LOSS),
    "lr": (1e-12, 1e6),
    "epochs": (1, 1e6),
    "reward": (0, 1e9),  # one over a loss, which has a lower bound
    **dict.fromkeys(("critic_loss", "actor_loss"), AGENT_LOSS),
}
WHOLE = ("number", "size", "epochs", "gradients")
NOT_JUDGED = {"test_accuracy", "test_loss", "before_accuracy", "before_loss"}  # in rounds without accuracies
UNTOLD_IN_A_ROUND = {"critic_loss", "actor_loss"}  # not before an agent learns, nor without agents
# nothing has been played yet
UNTOLD_AT_FIRST = {"lr", "epochs", "gradients", "seconds", "reward"} | UNTOLD_IN_A_ROUND


def implausible(told: Mapping[str, float], untold: Set[str]) -> str | None:
    """Why a report is refused; None if it is plausible. `untold`: names that may be NaN ("not told")."""
    for name, value in told.items():
        low, high = RANGES[name]
        if isnan(value):
            if name not in untold:
                return f"it does not tell its {name}"
        elif not low <= value <= high or (name in WHOLE and value % 1):
            return (
                f"its {name} is {value:.6g}, expected {'a whole number ' if name in WHOLE else ''}from "
                f"{low:g} to {high:g}"
            )
    return None
