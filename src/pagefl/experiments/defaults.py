"""The paper's settings: defaults of tasks, algorithms and players."""

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
USUAL: Mapping[str, Number] = {"lr": 0.1, "epochs": 5}  # for tasks without settings
IMAGES: Mapping[str, Number] = {"weight_decay": 1e-4, "clip": 10.0, "rounds": 1000, "reward_penalty": 0.0, "look": 1000}
CIFAR100 = {**IMAGES, "lr": 0.2, "epochs": 5, "batch_size": 32}
TINY_IMAGENET = {**IMAGES, "lr": 0.1, "epochs": 20, "batch_size": 128}
SHAKESPEARE = {**IMAGES, "lr": 1.0, "epochs": 20, "batch_size": 32}
TASKS: dict[str, Mapping[str, Number]] = {
    "synthetic": SYNTHETIC,
    "synthetic-mlp": SYNTHETIC,
    "cifar100": CIFAR100,
    "cifar100-small": {**CIFAR100, "rounds": 40, "lr": 0.05, "epochs": 2},
    "tiny-imagenet": TINY_IMAGENET,
    "tiny-imagenet-small": {**TINY_IMAGENET, "rounds": 40, "lr": 0.05, "epochs": 2, "batch_size": 32},
    "shakespeare": SHAKESPEARE,
    "shakespeare-small": {**SHAKESPEARE, "rounds": 30, "epochs": 5},
}


def _players(lr_min: float, lr_max: float, critic_lr: float, actor_lr: float, tau: float) -> dict[str, dict[str, Number]]:
    """The ranges of the players' moves, and how PAGE's agents learn."""
    ranges: dict[str, Number] = {"lr_min": lr_min, "lr_max": lr_max, "epochs_max": 20}
    return {
        "page": {**ranges, "critic_lr": critic_lr, "actor_lr": actor_lr, "tau": tau},
        "page-shared": ranges,
        "dapfl": ranges,
        "random": ranges,
        "schedule": {"lr_last": lr_min, "epochs_last": 1},
    }


def ranges_around(settings: Mapping[str, Number]) -> dict[str, dict[str, Number]]:
    """Ranges for a user's own task, around its lr and epochs."""
    known = {**USUAL, **{name: value for name, value in settings.items() if isinstance(value, int | float)}}
    lr, epochs = known["lr"], int(known["epochs"])
    ranges: dict[str, Number] = {"lr_min": lr / 30, "lr_max": 3 * lr, "epochs_max": 4 * epochs}
    learning = dict.fromkeys(("page", "page-shared", "dapfl", "random"), ranges)
    return {**learning, "schedule": {"lr_last": lr / 100, "epochs_last": 1}}


PLAYERS: dict[str, Mapping[str, Mapping[str, Number]]] = {
    "synthetic": _players(1e-3, 0.1, critic_lr=5e-3, actor_lr=5e-4, tau=5e-3),
    "cifar100": _players(1e-2, 0.2, critic_lr=1e-3, actor_lr=1e-4, tau=1e-2),
    "tiny-imagenet": _players(1e-3, 0.1, critic_lr=5e-2, actor_lr=5e-3, tau=5e-2),
    "shakespeare": _players(1e-2, 1.0, critic_lr=1e-3, actor_lr=1e-4, tau=1e-3),
}
PLAYERS["synthetic-mlp"] = PLAYERS["synthetic"]
PLAYERS |= {f"{name}-small": PLAYERS[name] for name in ("cifar100", "tiny-imagenet", "shakespeare")}

DEFAULT_ALGORITHM = "fedavg"

# Names for an algorithm together with its players.
NICKNAMES: dict[str, dict[str, str]] = {
    "page": {"algorithm": "fedavg", "players": "page"},
    "dapfl": {"algorithm": "fedavg", "players": "dapfl"},
}

# Settings that an algorithm needs if players change lr and epochs over rounds and between clients.
APART: dict[str, Mapping[str, Number | bool]] = {"scaffold": {"fresh": 0.1, "bounded": True}}
TOGETHER: dict[str, Mapping[str, Number | bool]] = {"scaffold": {"bounded": True}}
# Players that are not listed use APART.
PLAYED: dict[str, dict[str, Mapping[str, Number | bool]]] = {"fixed": {}, "page-shared": TOGETHER}

# Settings of the task that an algorithm changes. Its own hyperparameters are the defaults of its constructor,
# which are the paper's too.
ALGORITHMS: dict[str, Mapping[str, Number]] = {
    "fedrecon": {"epochs": 18},
    "pfedme": {"lr": 0.005},
}
