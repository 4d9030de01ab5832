"""Every table and figure of the paper as data: its tasks, rows, columns, figure and the published numbers.

Chen, Wang, Hu, Yan, Zhou, Lin: PAGE: Equilibrate Personalization and Generalization in Federated Learning.
WWW 2024.

To add a table, add an entry to TABLES.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

# made by reports/tables.py
Columns = Literal["accuracy", "clients", "personal", "convergence", "differences", "attacks", "time"]
Figure = Literal["plane", "curves", "pairs", "budgets", "attacks", "time"]  # drawn by reports/figures.py
PAPER_TASKS = ("synthetic", "cifar100", "tiny-imagenet", "shakespeare")
METHODS = {  # in the order of Table 1, with the side whose convergence Table 2 reports
    "fedavg": "global",
    "fedprox": "global",
    "scaffold": "global",
    "feddyn": "global",
    "dapfl": "global",
    "fedrecon": "local",
    "pfedme": "local",
    "ditto": "local",
    "fedala": "local",
    "fedrod": "local",
    "page": "global",
}
# Methods that the paper does not compare with. They are in the tables at laptop scale.
BESIDE = (
    *("apfl", "fedper", "fedrep", "fedbabu", "perfedavg"),
    *("fednova", "fedavgm", "fedadam", "fedexp", "local"),
)
LAPTOP_TASKS = {  # of a paper's task: those that a laptop trains to the end
    "synthetic": ("synthetic",),
    "cifar100": ("cifar100-patches", "cifar100-resnet"),
    "tiny-imagenet": ("tiny-imagenet-patches",),
    "shakespeare": ("shakespeare-mlp",),
}
PERSONAL = ("page", "fedrecon", "pfedme", "ditto", "fedala", "fedrod")


class Published(NamedTuple):
    """Published numbers, in per cent; None where there are none."""

    global_mean: float | None
    local_mean: float | None
    global_std: float | None = None
    local_std: float | None = None
    converged: int | None = None
    side: str = "global"  # the side that converged


class Row(NamedTuple):
    settings: Mapping[str, Any]  # by names such as algorithm or task.clients
    published: Published | None = None


@dataclass(frozen=True)
class Panel:
    """Rows of runs on one task: one table, or one panel of a figure."""

    task: str
    rows: Mapping[str, Row]
    about: str = ""  # what follows the task in the title
    shows: tuple[Columns, ...] = ("accuracy", "differences", "clients", "personal")
    laptop: tuple[str, ...] = ()  # the tasks at laptop scale, if they are others
    beside: Mapping[str, Row] = field(default_factory=dict)  # further rows at laptop scale
    seeds: tuple[int, ...] = ()  # but for a smoke test, if they are others than the task's


@dataclass(frozen=True)
class Table:
    title: str
    panels: tuple[Panel, ...]
    figure: Figure | None = "plane"


# Table 1: global mean, std, local mean, std. Table 2, below it: the round of convergence.
TABLE1: dict[str, dict[str, tuple[float, float, float, float]]] = {
    "synthetic": {
        "fedavg": (91.46, 0.07, 95.26, 1.26),
        "fedprox": (91.48, 0.05, 95.49, 0.35),
        "scaffold": (97.37, 0.08, 95.71, 0.53),
        "feddyn": (97.57, 0.07, 94.11, 1.42),
        "dapfl": (92.19, 0.13, 94.14, 1.11),
        "pfedme": (85.59, 0.25, 90.23, 1.02),
        "ditto": (92.09, 0.17, 95.56, 1.12),
        "fedala": (85.51, 0.04, 95.42, 1.07),
        "fedrod": (87.93, 0.21, 90.63, 1.12),
        "page": (92.67, 0.13, 96.24, 0.33),
    },
    "cifar100": {
        "fedavg": (32.97, 0.03, 38.30, 0.44),
        "fedprox": (33.46, 0.12, 39.22, 0.77),
        "scaffold": (32.81, 0.03, 36.12, 0.81),
        "feddyn": (33.47, 0.05, 35.28, 1.11),
        "dapfl": (32.28, 0.27, 40.72, 1.41),
        "fedrecon": (24.88, 0.14, 31.75, 0.65),
        "pfedme": (30.29, 0.03, 38.68, 0.45),
        "ditto": (31.86, 0.24, 39.93, 1.35),
        "fedala": (32.10, 0.05, 39.63, 0.84),
        "fedrod": (31.75, 0.41, 31.47, 0.59),
        "page": (33.55, 0.14, 40.94, 0.26),
    },
    "tiny-imagenet": {
        "fedavg": (7.85, 0.04, 11.29, 0.74),
        "fedprox": (7.79, 0.05, 11.55, 0.93),
        "scaffold": (8.39, 0.02, 9.17, 0.94),
        "feddyn": (7.84, 0.27, 11.45, 1.14),
        "dapfl": (8.40, 0.43, 11.75, 2.19),
        "fedrecon": (6.25, 0.25, 10.15, 1.13),
        "pfedme": (6.60, 0.08, 9.23, 0.36),
        "ditto": (7.77, 0.05, 9.59, 0.22),
        "fedala": (7.63, 0.05, 9.83, 0.66),
        "fedrod": (8.13, 0.46, 12.34, 0.52),
        "page": (8.45, 0.17, 12.83, 0.48),
    },
    "shakespeare": {
        "fedavg": (47.52, 0.07, 40.24, 1.45),
        "fedprox": (47.29, 0.12, 40.51, 1.25),
        "scaffold": (49.14, 0.06, 39.36, 0.49),
        "feddyn": (51.68, 0.14, 42.82, 0.72),
        "dapfl": (51.67, 0.26, 48.85, 1.38),
        "fedrecon": (38.54, 0.06, 35.61, 2.02),
        "pfedme": (43.19, 0.04, 41.99, 0.69),
        "ditto": (48.95, 0.04, 47.05, 0.47),
        "fedala": (43.45, 0.09, 46.77, 1.14),
        "fedrod": (46.04, 0.11, 43.23, 1.17),
        "page": (51.74, 0.24, 49.27, 0.55),
    },
}
TABLE2_ORDER = ("page", *(method for method in METHODS if method != "page"))
TABLE2: dict[str, tuple[int | None, ...]] = {
    "synthetic": (891, 902, 896, 878, 901, 900, None, 843, 491, 501, 497),
    "cifar100": (499, 510, 497, 540, 502, 337, 641, 550, 313, 506, 401),
    "tiny-imagenet": (404, 430, 479, 422, 366, 402, 361, 513, 490, 523, 493),
    "shakespeare": (602, 552, 655, 546, 607, 590, 657, 642, 498, 646, 556),
}
# PFLlib's benchmark: accuracy in the best round, of the shared model or of the clients' own.
PFLLIB = {
    **{method: Published(value, None) for method, value in (("fedavg", 31.89), ("fedprox", 31.99))},
    **{
        method: Published(None, value)
        for method, value in (
            *(("perfedavg", 44.28), ("apfl", 46.74), ("pfedme", 47.34), ("fedper", 49.63), ("fedrod", 50.94)),
            *(("fedrep", 52.39), ("ditto", 52.87), ("fedbabu", 55.02), ("fedala", 55.92)),
        )
    },
}
PFLLIB_SETTINGS: dict[str, dict[str, float]] = {"pfedme": {"lr": 0.005, "algorithm.personal_lr": 0.01}}
SKEWS = {"sigma": (0.1, 0.3, 0.5), "delta": (0.1, 0.5, 1.0)}
TABLE3: dict[str, tuple[float, ...]] = {  # global, local for each skew
    "page": (33.47, 40.96, 33.61, 40.91, 33.52, 40.93, 32.69, 54.58, 33.57, 40.97, 33.53, 40.02),
    "fedrecon": (24.13, 31.88, 22.91, 32.91, 21.23, 34.95, 23.77, 47.29, 25.24, 25.65, 25.69, 20.13),
    "pfedme": (30.22, 38.92, 30.18, 39.45, 30.09, 39.68, 28.26, 47.23, 31.36, 33.28, 31.47, 29.62),
    "ditto": (31.46, 39.93, 30.96, 39.93, 30.31, 39.95, 30.59, 53.50, 32.47, 36.46, 32.79, 33.24),
    "fedala": (31.55, 39.63, 31.46, 39.64, 31.08, 39.64, 30.46, 53.58, 32.27, 34.98, 32.84, 30.24),
    "fedrod": (31.71, 32.19, 31.39, 32.31, 31.06, 32.88, 30.53, 49.44, 32.35, 28.18, 32.16, 22.98),
}
TABLE4_CLIENTS = {
    50: Published(91.75, 96.62, converged=618),
    100: Published(92.67, 96.24, converged=891),
    1000: Published(92.39, 96.43, converged=928),
}
TABLE4_BIAS = {
    "10:1": Published(35.11, 40.19, converged=538),
    "1:1": Published(33.55, 40.94, converged=499),
    "1:10": Published(31.91, 41.55, converged=493),
}
# Attacks and defences, beside page-shared's own weights; without them, its weights are by size.
ATTACKS = ("none", "signflip", "scale", "gaussian", "labelflip", "alie", "ipm", "mimic", "collude")
UNDER = " under "  # in a label, between a defence and an attack
LEARNED = "page-shared"
DEFENCES: dict[str, dict[str, Any]] = {
    LEARNED: {},
    "no defence": {"players.weights": "size"},
    **{
        name: {"players.weights": "size", "defence.name": name}
        for name in ("clip", "median", "trimmed-mean", "geometric-median", "multi-krum", "centred-clipping")
    },
    "nnm, trimmed-mean": {
        "players.weights": "size",
        "defence.name": "trimmed-mean",
        "defence.before": "nnm",
    },
}
ATTACKED: dict[str, Any] = {
    "algorithm": "fedavg",
    "players": "page-shared",
    "rounds": 60,
    "personal.when": "never",
}
FEW = ("scale", "collude")  # attacks of the maps
FIG3 = (("p",), ("eta",), ("alpha",), ("eta", "alpha"), ("p", "eta"), ("p", "alpha"), ("p", "eta", "alpha"))
PRIVATE = {"task.clients": 1000, "participation": 0.2, "rounds": 100, "epochs": 5, "personal.when": "never"}
PRIVATE_METHODS: dict[str, tuple[float, dict[str, float]]] = {  # the clipping norm, and settings of its own
    "fedavg": (2.0, {}),
    "fedavgm": (1.0, {"algorithm.server_lr": 0.5}),
}
EPSILONS = (8.0, 2.0)
# Phones whose rounds last as long as those of a large model. All clients take part, but for Oort and FedBuff,
# which need some to choose from. Rows differ in rounds so that their clocks end at about the same time.
PHONES: dict[str, Any] = {"devices.name": "phones", "devices.reference": 0.0, "devices.hours": 24.0}
TIMED = {**PHONES, "epochs": 5, "judge_every": 2, "clients_every": 1, "personal.when": "never"}
DROPPING = {"devices.barrier": "deadline"}
HALF = {"participation": 0.5, "devices.barrier": "first"}
UNLIMITED, BUDGETED = "fixed, wait for all", "page-shared, budget"
# Task: its own settings, rounds with a budget, and the budget in seconds of a round. It is what five epochs
# cost the median client, in the mean over seeds 0 to 2: known before anything is trained.
TIMES: dict[str, tuple[dict[str, Any], int, float]] = {
    "synthetic": ({"task.clients": 50}, 200, 14.0),
    "digits": ({}, 120, 3.0),
    "cifar100-patches": ({}, 200, 16.0),
}
FACTORS = {"p": "p", "eta": "lr", "alpha": "epochs"}  # what players choose, and its label


def _on_every_task(
    methods: Iterable[str], shows: tuple[Columns, ...] = Panel.shows, beside: Iterable[str] = ()
) -> tuple[Panel, ...]:
    return tuple(
        Panel(
            task,
            {method: Row({"algorithm": method}, _published(task, method)) for method in methods},
            shows=shows,
            laptop=LAPTOP_TASKS[task],
            beside={method: Row({"algorithm": method}) for method in beside},
        )
        for task in PAPER_TASKS
    )


def _published(task: str, method: str) -> Published | None:
    """None for a method that needs a body and a head, on a logistic model."""
    if method not in TABLE1[task]:
        return None
    global_mean, global_std, local_mean, local_std = TABLE1[task][method]
    converged = TABLE2[task][TABLE2_ORDER.index(method)]
    return Published(global_mean, local_mean, global_std, local_std, converged, METHODS[method])


def _skewed() -> tuple[Panel, ...]:
    skews = [(name, value) for name, values in SKEWS.items() for value in values]
    return tuple(
        Panel(
            "cifar100",
            {
                method: Row(
                    {"algorithm": method, f"task.{name}": value},
                    Published(TABLE3[method][2 * at], TABLE3[method][2 * at + 1]),
                )
                for method in PERSONAL
            },
            about=f"{name} = {value:g}",
            laptop=("cifar100-patches",),
        )
        for at, (name, value) in enumerate(skews)
    )


def _private(method: str, clip: float, own: Mapping[str, float]) -> Panel:
    """One method with smaller and smaller privacy budgets."""
    common = {"algorithm": method, **own, **PRIVATE}
    budgets = {
        f"epsilon = {epsilon:g}": Row({**common, "privacy.epsilon": epsilon, "privacy.clip": clip})
        for epsilon in EPSILONS
    }
    rows = {"no privacy": Row(common), **budgets}
    about = f"{method}, {PRIVATE['task.clients']} clients"
    return Panel("synthetic", rows, about, ("accuracy", "differences", "clients"), seeds=(0, 1, 2))


def _timed(task: str, own: Mapping[str, Any], rounds: int, budget: float) -> Panel:
    """Ways to deal with slow clients. The deadline of every row is the budget, whether it is kept or not."""
    free = {"players.epochs_max": 20}
    rows: dict[str, dict[str, Any]] = {
        UNLIMITED: {"rounds": rounds // 2},
        "fixed, late dropped": DROPPING,
        "FedProx, partial work": {"algorithm": "fedprox", "players": "partial", **DROPPING},
        "epochs scaled to speed": {"players": "scaled"},
        "Oort": {**HALF, "devices.over": 1.3, "devices.select": "oort"},
        "FedBuff": {**HALF, "devices.over": 2.0, "devices.late": "buffer", "rounds": 2 * rounds},
        "page-shared": {"players": "page-shared", **free, "rounds": rounds // 2},
        BUDGETED: {"players": "page-shared", **free, "players.budget": budget},
        f"{BUDGETED}, lr fixed": {
            "players": "page-shared",
            **free,
            "players.budget": budget,
            "freeze": ["eta"],
        },
        "page, budget": {"players": "page", **free, "players.budget": budget},
    }
    common = {"algorithm": "fedavg", "rounds": rounds, **own, **TIMED, "devices.deadline": budget}
    about = f"budget {budget:g} seconds"
    return Panel(
        task,
        {label: Row({**common, **settings}) for label, settings in rows.items()},
        about,
        ("time",),
        seeds=(0, 1, 2, 3, 4),
    )


def _attacked(
    task: str,
    defences: Iterable[str],
    attacks: Iterable[str],
    seeds: tuple[int, ...],
    about: str,
    shows: tuple[Columns, ...] = ("attacks",),
    **settings: Any,
) -> Panel:
    """`settings`: by names with __ for dots."""
    own = {name.replace("__", "."): value for name, value in settings.items()}
    rows = {
        f"{defence}{UNDER}{attack}": Row({**ATTACKED, **DEFENCES[defence], **own, "attack.name": attack})
        for defence in defences
        for attack in attacks
    }
    return Panel(task, rows, about, shows, seeds=seeds)


def _maps() -> tuple[Panel, ...]:
    """Shares of hostile clients and spreads of the clients' inputs. They have a figure and no table."""
    return tuple(
        _attacked(
            "synthetic",
            (LEARNED, "no defence", "trimmed-mean"),
            FEW if share else ("none",),
            (0,),
            f"beta = {beta:g}, {share:.0%} hostile",
            (),
            task__clients=50,
            task__beta=beta,
            attack__share=share,
        )
        for beta in (0.0, 1.0, 2.0)
        for share in (0.0, 0.2, 0.4)
    )


def _played(factors: tuple[str, ...]) -> Row:
    """Only these factors are played. The others stay as in the fixed methods."""
    return Row({"algorithm": "page", "freeze": [factor for factor in FACTORS if factor not in factors]})


TABLES: dict[str, Table] = {
    "table1": Table("Global and local accuracy", _on_every_task(METHODS, beside=BESIDE)),
    "table2": Table("Rounds until convergence", _on_every_task(METHODS, ("convergence",)), figure=None),
    "table3": Table("Quantity and label skew", _skewed()),
    "table4": Table(
        "PAGE with more clients, and with other demand ratios",
        (
            Panel(
                "synthetic",
                {
                    f"{clients} clients": Row({"algorithm": "page", "task.clients": clients}, numbers)
                    for clients, numbers in TABLE4_CLIENTS.items()
                },
                about="number of clients",
                shows=("accuracy", "clients", "convergence"),  # no differences: other clients have other data
            ),
            Panel(
                "cifar100",
                {
                    ratio: Row({"algorithm": "page", "bias": ratio}, numbers)
                    for ratio, numbers in TABLE4_BIAS.items()
                },
                about="reward ratio server:clients",
                shows=("accuracy", "clients", "convergence", "differences"),
                laptop=("cifar100-patches",),
            ),
        ),
    ),
    "beside-pfllib": Table(
        "Beside PFLlib's published benchmark",
        (
            Panel(
                "cifar100-cnn",
                {
                    method: Row({"algorithm": method, **PFLLIB_SETTINGS.get(method, {})}, numbers)
                    for method, numbers in PFLLIB.items()
                },
            ),
        ),
    ),
    "privacy": Table(
        "Accuracy against the privacy budget, with delta = 1e-5",
        tuple(_private(method, *own) for method, own in PRIVATE_METHODS.items()),
        figure="budgets",
    ),
    "robustness": Table(
        "Hostile clients: a fifth of all, 60 rounds",
        (
            _attacked("synthetic", (LEARNED,), ATTACKS, (0, 1, 2, 3, 4), "five seeds", task__clients=50),
            _attacked(
                "synthetic", ("no defence",), ("none",), (0, 1, 2, 3, 4), "five seeds", task__clients=50
            ),
            _attacked("synthetic", tuple(DEFENCES)[1:], ATTACKS, (0,), "one seed", task__clients=50),
            _attacked("digits", (LEARNED, "no defence", "trimmed-mean"), ATTACKS, (0,), "one seed"),
            *_maps(),
        ),
        figure="attacks",
    ),
    "resources": Table(
        "Slow clients: accuracy by simulated time",
        tuple(_timed(task, *settings) for task, settings in TIMES.items()),
        figure="time",
    ),
    "table5": Table("Time of each part of a round of PAGE, by `pagefl bench table5`", (), figure=None),
    "fig2": Table("Accuracy and rewards of PAGE", _on_every_task(["page"]), figure="curves"),
    "fig3": Table(
        "Ablation: what PAGE's players choose",
        (
            Panel(
                "cifar100",
                {" + ".join(FACTORS[factor] for factor in factors): _played(factors) for factors in FIG3},
                laptop=("cifar100-patches",),
            ),
        ),
        figure="pairs",
    ),
}
