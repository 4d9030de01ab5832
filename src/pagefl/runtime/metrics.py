"""Metric: a number of the user's own, measured where accuracy is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pagefl.core.algorithm import Algorithm
from pagefl.core.block import adapts
from pagefl.core.errors import UserError, shown
from pagefl.core.evaluate import BLOCK
from pagefl.core.examples import Examples
from pagefl.core.training.model import Model

from .record import Record, finite
from .simulation import Simulation

TAKEN = ("accuracy", "accuracy_before", "loss", "std", "worst10", "chance")  # of a round's record


@dataclass(frozen=True)
class Metric:
    """A number beside accuracy, such as macro-F1, AUC or a calibration error.

    `function` gets the logits [examples, classes] of one model on one set of test data and their labels
    [examples], and returns a number; NaN where it is not defined. The shared model's is recorded as
    `global_NAME`, the mean over the clients' models as `local_NAME`::

        def brier(logits, labels):
            truth = torch.nn.functional.one_hot(labels, logits.shape[1])
            return ((logits.softmax(1) - truth) ** 2).sum(1).mean()

        run = pagefl.run(task="digits", rounds=10, metrics=[pagefl.Metric("brier", brier)])
        run.history[["global_brier", "local_brier"]]
    """

    name: str
    function: Callable[[Tensor, Tensor], float | Tensor]

    def of(self, logits: Tensor, labels: Tensor) -> float:
        value = self.function(logits, labels)
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError):
            raise UserError(f"metric {self.name}: it returned {shown(value)}; expected one number") from None


def check(metrics: Sequence[Metric], algorithm: Algorithm, executor: str) -> None:
    """Raise if these metrics cannot be recorded."""
    names = [metric.name for metric in metrics]
    for name in names:
        if not name.isidentifier() or name in TAKEN or names.count(name) > 1:
            raise UserError(
                f"metric {shown(name)}: expected a name of its own, of letters, digits and _, and not one of "
                f"{', '.join(TAKEN)}"
            )
    if metrics and executor != "local":
        raise UserError(f"metrics: they are measured in this process; executor = {executor}, expected local")
    if metrics and adapts(algorithm):
        kind = type(algorithm).__name__
        raise UserError(
            f"metrics: {kind} fits the shared model to data before it is evaluated; expected another one"
        )


def measured(metrics: Sequence[Metric], simulation: Simulation) -> Record:
    """`global_NAME` and `local_NAME` of every metric, for the models as they are now."""
    if not metrics:
        return {}
    shared, personal = simulation.models()
    model, found = simulation.server.model, {}
    logits, labels = _logits(model, shared, simulation.server.data["server_test"])
    own = [_logits(model, row, simulation.held["test"], i) for i, row in enumerate(personal)]
    for metric in metrics:
        values = np.array([metric.of(*each) for each in own])
        known = values[np.isfinite(values)]
        found[f"global_{metric.name}"] = finite(metric.of(logits, labels))
        found[f"local_{metric.name}"] = finite(known.mean()) if len(known) else None
    return found


def _logits(model: Model, row: Tensor, examples: Examples, owner: int | None = None) -> tuple[Tensor, Tensor]:
    """On the examples of one owner, or of all."""
    x, y = (examples.x, examples.y) if owner is None else examples.client(owner)
    parts = [model.logits(row[None], part[None].clone())[0] for part in torch.split(x, BLOCK)]
    return torch.cat(parts), y
