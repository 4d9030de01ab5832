"""The better of several attempts of each client at a round's training."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from .algorithm import Local
from .arrays import Floats, Integers
from .jobs import Attempt, Job, Played

TRIES = 3  # of a client above its limit: each with a tenth of the learning rate
DIVERGED = 1e9  # stands for the objective of a model that is not finite


def best(job: Job, attempt: Callable[[Job], Attempt]) -> tuple[Attempt, Played]:
    """The best attempt of each client: with its own lr and epochs, with its rival's, and, above its limit,
    with smaller and smaller lr."""

    def again(places: Integers, lr: Floats, epochs: Integers) -> Attempt:
        return attempt(job._replace(ids=job.ids[places], lr=lr, epochs=epochs))

    made, count = attempt(job), len(job.ids)
    played = Played(job.lr.copy(), job.epochs.copy(), np.ones(count), np.zeros(count))
    if job.rivals is not None and (job.rivals.lr > 0).any():
        trying = np.flatnonzero(job.rivals.lr > 0)
        lr, epochs = job.rivals.lr[trying], job.rivals.epochs[trying]
        second = again(trying, lr, epochs)
        played.lead[trying] = _known(made.objective[trying]) - _known(second.objective)
        made, better = _better(made, trying, second)
        played.lr[trying[better]], played.epochs[trying[better]] = lr[better], epochs[better]
    if job.limits is None:
        return made, played
    above = np.flatnonzero(~(made.objective <= job.limits))
    for _ in range(TRIES):
        if not len(above):
            break
        made, better = _better(made, above, again(above, played.lr[above] * 0.1, played.epochs[above]))
        above = above[better]
        played.lr[above] *= 0.1
        played.shrunk[above] *= 0.1
        above = above[~(made.objective[above] <= job.limits[above])]
    return made, played


def _known(objective: Floats) -> Floats:
    return np.nan_to_num(objective, nan=DIVERGED)


def _better(made: Attempt, places: Integers, second: Attempt) -> tuple[Attempt, Integers]:
    """The better of two attempts for each of these clients, and which of them the second is better for."""
    better = np.flatnonzero(~(made.objective[places] <= second.objective))
    chosen, evaluated = places[better], made.evaluated.copy()
    evaluated[places] += second.evaluated
    added, objective = made.added.copy(), made.objective.copy()
    added[chosen], objective[chosen] = second.added[better], second.objective[better]
    return Attempt(
        _replaced(made.outcome, chosen, second.outcome, better), added, objective, evaluated
    ), better


def _replaced(outcome: Local, places: Integers, by: Local, those: Integers) -> Local:
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
