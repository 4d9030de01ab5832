"""The better of several attempts of each client at a round's training."""

import numpy as np
import torch
from torch import Tensor

from .algorithm import Local
from .arrays import Floats, Integers
from .jobs import Attempt

DIVERGED = 1e9  # stands for the objective of a model that is not finite


def known(objective: Floats) -> Floats:
    return np.nan_to_num(objective, nan=DIVERGED)


def best_of(made: Attempt, places: Integers, second: Attempt) -> tuple[Attempt, Integers]:
    """The better of two attempts for each of these clients, and which of them the second is better for."""
    better = np.flatnonzero(~(made.objective[places] <= second.objective))
    chosen, gradients = places[better], made.gradients + second.gradients
    added, objective = made.added.copy(), made.objective.copy()
    added[chosen], objective[chosen] = second.added[better], second.objective[better]
    return Attempt(
        replaced(made.outcome, chosen, second.outcome, better), added, objective, gradients
    ), better


def replaced(outcome: Local, places: Integers, by: Local, those: Integers) -> Local:
    """An outcome in which some rows are those of another. Rows that were the same stay the same."""
    made: dict[int, Tensor] = {}

    def rows(old: Tensor, new: Tensor) -> Tensor:
        if id(old) not in made:
            made[id(old)] = old.clone()
            made[id(old)][torch.from_numpy(places)] = new[torch.from_numpy(those)]
        return made[id(old)]

    return Local(
        {name: rows(value, by.upload[name]) for name, value in outcome.upload.items()},
        rows(outcome.personal, by.personal),
        {name: rows(value, by.kept[name]) for name, value in outcome.kept.items()},
    )
