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

# What players are told of a task: the ranges of their moves, and how their agents learn.
RANGES: Mapping[str, Number] = {"lr_min": 1e-3, "lr_max": 0.1, "epochs_max": 20}
SYNTHETIC_PLAYERS: Mapping[str, Mapping[str, Number]] = {
    "page": {**RANGES, "critic_lr": 5e-3, "actor_lr": 5e-4, "tau": 5e-3},
    "dapfl": RANGES,
    "random": RANGES,
    "schedule": {"lr_last": 1e-3, "epochs_last": 1},
}
PLAYERS: dict[str, Mapping[str, Mapping[str, Number]]] = {
    "synthetic": SYNTHETIC_PLAYERS,
    "synthetic-mlp": SYNTHETIC_PLAYERS,
}

# Names that stand for an algorithm and its players together.
NICKNAMES: dict[str, dict[str, str]] = {
    "page": {"algorithm": "fedavg", "players": "page"},
    "dapfl": {"algorithm": "fedavg", "players": "dapfl"},
}

# What an algorithm needs where players change lr and epochs from round to round.
PLAYED: dict[str, Mapping[str, Number | bool]] = {
    "scaffold": {"fresh": 0.2, "normalise": True},
}

# What an algorithm changes of its task's settings. Its own hyper-parameters are its constructor's defaults, the paper's too.
ALGORITHMS: dict[str, Mapping[str, Number]] = {
    "fedrecon": {"epochs": 18},
    "pfedme": {"lr": 0.005},
}
