"""The paper's numbers: one table. What a task or an algorithm is run with unless its user says otherwise."""

from collections.abc import Mapping

Number = float | int

SYNTHETIC: Mapping[str, Number] = {
    "lr": 0.1,
    "epochs": 20,
    "batch_size": 5,
    "weight_decay": 1e-5,
    "clip": 10.0,
    "rounds": 1000,
    "reward_penalty": 1e-5,
}
TASKS: dict[str, Mapping[str, Number]] = {
    "synthetic": SYNTHETIC,
    "synthetic-mlp": SYNTHETIC,
}

# What an algorithm changes of its task's settings. Its own hyper-parameters are its constructor's defaults, the paper's too.
ALGORITHMS: dict[str, Mapping[str, Number]] = {
    "fedrecon": {"epochs": 18},
    "pfedme": {"lr": 0.005},
}
