"""Defaults of algorithms and players, most of them the paper's. Those of a task are in tasks.py."""

from collections.abc import Mapping

Number = float | int

USUAL: Mapping[str, Number] = {"lr": 0.1, "epochs": 5}  # for tasks without settings


def players_within(
    lr_min: float, lr_max: float, critic_lr: float, actor_lr: float, tau: float
) -> dict[str, dict[str, Number]]:
    """Defaults of players: the ranges of their moves, and how PAGE's agents learn."""
    ranges: dict[str, Number] = {"lr_min": lr_min, "lr_max": lr_max, "epochs_max": 20}
    return {
        "page": {**ranges, "critic_lr": critic_lr, "actor_lr": actor_lr, "tau": tau},
        "page-shared": {"epochs_max": 20},
        "dapfl": ranges,
        "random": ranges,
        "fedex": ranges,
        "schedule": {"lr_last": lr_min, "epochs_last": 1},
    }


def ranges_around(settings: Mapping[str, Number]) -> dict[str, dict[str, Number]]:
    """Ranges for a user's own task, around its lr and epochs."""
    known = {**USUAL, **{name: value for name, value in settings.items() if isinstance(value, int | float)}}
    lr, epochs = known["lr"], int(known["epochs"])
    ranges: dict[str, Number] = {"lr_min": lr / 30, "lr_max": 3 * lr, "epochs_max": 4 * epochs}
    learning = dict.fromkeys(("page", "dapfl", "random", "fedex"), ranges)
    return {
        **learning,
        "page-shared": {"epochs_max": 4 * epochs},
        "schedule": {"lr_last": lr / 100, "epochs_last": 1},
    }


DEFAULT_ALGORITHM = "fedavg"

# Names for an algorithm together with its players. `personal`: it is meant with the personal step.
NICKNAMES: dict[str, dict[str, str]] = {
    "fedavg-ft": {"algorithm": "fedavg", "players": "fixed", "personal": "end"},
    "page": {"algorithm": "fedavg", "players": "page"},
    "dapfl": {"algorithm": "fedavg", "players": "dapfl"},
}


def label(algorithm: str, players: str) -> str:
    """A short name: the algorithm, and its players unless they are fixed."""
    pair = {"algorithm": algorithm, "players": players}
    short = [name for name, meaning in NICKNAMES.items() if meaning == pair]
    algorithm, players = (name.rpartition(":")[2] for name in pair.values())  # the class of module:Class
    return short[0] if short else algorithm + (f"+{players}" if players != "fixed" else "")


# Settings that an algorithm needs if players change lr and epochs over rounds and between clients.
APART: dict[str, Mapping[str, Number | bool]] = {"scaffold": {"fresh": 0.1, "bounded": True}}
TOGETHER: dict[str, Mapping[str, Number | bool]] = {"scaffold": {"bounded": True, "measured": True}}
# Players that are not listed use APART.
PLAYED: dict[str, dict[str, Mapping[str, Number | bool]]] = {
    "fixed": {},
    "cosine": {},
    "page-shared": TOGETHER,
}

# Settings of the task that an algorithm changes. Its own hyperparameters are the defaults of its constructor,
# which are the paper's too.
ALGORITHMS: dict[str, Mapping[str, Number]] = {
    "fedrecon": {"epochs": 18},
    "pfedme": {"lr": 0.005},
}

# Settings in the tables at laptop scale, on tasks with one local epoch. pFedMe's lr times its lam must stay
# below one.
ONE_EPOCH: dict[str, Mapping[str, Number]] = {
    "ditto": {"algorithm.personal_epochs": 1},
    "fedrep": {"algorithm.head_epochs": 1},
    "fedrecon": {"epochs": 1, "algorithm.reconstruction_epochs": 1},
    "pfedme": {"lr": 0.05, "algorithm.personal_lr": 0.05},
    "fedadam": {"algorithm.server_lr": 0.01},
}
