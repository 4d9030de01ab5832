"""What an algorithm adds to a client's loss. The algorithm says it once, by the options of its training."""

import torch
from torch import Tensor

from .algorithm import Local
from .arrays import Floats
from .training.stack import Stack


def uploaded(outcome: Local) -> Tensor:
    """The model that a client uploads; its own, where the upload has none."""
    return outcome.upload.get("model", outcome.personal)


def added(clients: Stack, rows: Tensor) -> Floats:
    """By how much training has changed what is added to the loss of these rows.

    That is mu/2 |row - anchor|² + shift * row. It is zero for rows that are not what `train` has returned,
    and where the direction is the algorithm's own.
    """
    found = torch.zeros(len(rows), dtype=torch.float64)
    options = next((options for trained, options in clients.trained if trained is rows), None)
    if options is None or options.anchor_rate is not None:
        return found.numpy()
    # One by one and in float64: a sum must not depend on who else is in the stack.
    for i, (row, sent) in enumerate(zip(rows.double(), clients.sent["model"].double(), strict=True)):
        if options.shift is not None:
            found[i] += (options.shift[i].double() * (row - sent)).sum()
        if isinstance(options.mu, Tensor) and options.anchor is not None:
            anchor = options.anchor[i].double()
            found[i] += float(options.mu[i]) / 2 * ((row - anchor).square() - (sent - anchor).square()).sum()
    return found.numpy()
