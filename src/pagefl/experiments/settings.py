"""The paper's numbers: one table. What a task or an algorithm is run with unless its user says otherwise."""

from collections.abc import Mapping

Number = float | int

TASKS: dict[str, Mapping[str, Number]] = {
    "synthetic": {
        "lr": 0.1,
        "epochs": 20,
        "batch_size": 5,
        "weight_decay": 1e-5,
        "clip": 10.0,
        "rounds": 1000,
        "reward_penalty": 1e-5,
    },
}

# What an algorithm changes of its task's settings; its own hyper-parameters are its constructor's defaults.
ALGORITHMS: dict[str, Mapping[str, Number]] = {}
