"""The tasks that have a name: a function each, whose arguments are the task's own settings."""

from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from pagefl.data.synthetic import CLASSES, FEATURES
from pagefl.data.synthetic import synthetic as synthetic_data
from pagefl.models.logistic import logistic
from pagefl.models.mlp import Mlp
from pagefl.runtime.task import Task

Count = Annotated[int, Field(ge=1)]
Spread = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def synthetic(seed: int, clients: Count = 100, alpha: Spread = 0.0, beta: Spread = 1.0, theta: Spread = 0.0) -> Task:
    """Logistic regression on Synthetic(alpha, beta), 30 features, 30 classes, 375 examples a client.

    Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020; generated as by Acar et al., ICLR 2021.
    """
    data = synthetic_data(clients, seed, alpha, beta, theta)
    return Task("synthetic", lambda: logistic(FEATURES, CLASSES), data)


def synthetic_mlp(
    seed: int, clients: Count = 100, alpha: Spread = 0.0, beta: Spread = 1.0, theta: Spread = 0.0, hidden: Count = 64
) -> Task:
    """Synthetic with one hidden layer: a small model that has a body and a head."""
    data = synthetic_data(clients, seed, alpha, beta, theta)
    return Task("synthetic-mlp", lambda: Mlp(FEATURES, CLASSES, hidden), data)


TASKS: dict[str, Callable[..., Task]] = {
    "synthetic": synthetic,
    "synthetic-mlp": synthetic_mlp,
}
