"""What reports draw by round: every quantity, and the charts they stand in."""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from pagefl.runtime.by_class import HIGH, LOW, MEDIANS

from .palette import COLOURS

SHARE, POSITIVE = (0.0, 1.0), (0.0, inf)


class Quantity(NamedTuple):
    column: str
    label: str
    hue: int  # of a single run's line
    dash: str = "solid"
    band: tuple[str, str] | None = None  # columns of the edges of a band around the line
    bridges: bool = False  # known in some rounds only, and drawn across the others
    title: str = ""  # of the chart that compares several runs; without one there is none
    about: str = ""


class Chart(NamedTuple):
    title: str
    unit: str
    about: str
    shown: tuple[Quantity, ...]
    log: bool = False
    bounds: tuple[float, float] = (-inf, inf)  # of the vertical axis
    along: str = "round"  # the column along the horizontal axis; runs without it are left out


CHARTS = (
    Chart(
        "Accuracy",
        "accuracy",
        "The shared model on the server's test data (global), and the clients' models on their own test data "
        "(local: after training; personal: after the personal step).",
        (
            Quantity(
                "global_accuracy",
                "global",
                0,
                title="Global accuracy",
                about="The shared model on the server's test data.",
            ),
            Quantity(
                "local_accuracy",
                "local",
                1,
                title="Local accuracy",
                about="The clients' models on their own test data, after training (mean).",
            ),
            Quantity("local_accuracy_before", "local before training", 1, "dash"),
            Quantity(
                "personal_accuracy",
                "personal",
                2,
                "dot",
                bridges=True,
                title="Personal accuracy",
                about="The clients' models on their own test data, after the personal step (mean).",
            ),
        ),
        bounds=SHARE,
    ),
    Chart(
        "Accuracy by the hour",
        "accuracy",
        "The same by the clock: simulated devices', or that of a deployment.",
        (
            Quantity(
                "global_accuracy",
                "global",
                0,
                title="Global accuracy by the hour",
                about="The shared model on the server's test data, by the clock.",
            ),
            Quantity(
                "local_accuracy",
                "local",
                1,
                title="Local accuracy by the hour",
                about="The clients' models on their own test data, after training (mean), by the clock.",
            ),
        ),
        bounds=SHARE,
        along="hours",
    ),
    Chart(
        "Spread over the clients",
        "local accuracy",
        "Local accuracy: mean, one standard deviation around it, and the mean of the worst tenth.",
        (
            Quantity("local_accuracy", "mean", 1, band=("local_below", "local_above")),
            Quantity(
                "local_worst10",
                "worst tenth",
                3,
                "dash",
                title="Worst tenth",
                about="Local accuracy of the worst tenth of the clients (mean).",
            ),
        ),
        bounds=SHARE,
    ),
    Chart(
        "Loss",
        "cross-entropy",
        "On the server's test data, on the clients' own test data, and on their training data.",
        (
            Quantity("global_loss", "global", 0, title="Global loss", about="On the server's test data."),
            Quantity("local_loss", "local", 1, title="Local loss", about="On the clients' own test data."),
            Quantity("train_loss", "training", 2, "dash"),
        ),
    ),
    Chart(
        "Rewards",
        "reward",
        "One over the loss: of the server, and of the clients (mean).",
        (
            Quantity("reward_server", "server", 0, title="Server's reward", about="One over its loss."),
            Quantity(
                "reward_clients", "clients", 1, title="Clients' rewards", about="One over the loss (mean)."
            ),
        ),
        log=True,
    ),
    Chart(
        "Learning rate",
        "learning rate",
        "What the clients chose or were given (mean).",
        (
            Quantity(
                "mean_lr", "mean", 3, title="Learning rate", about="Chosen by or given to the clients (mean)."
            ),
        ),
        log=True,
    ),
    Chart(
        "Local epochs",
        "epochs",
        "What the clients chose or were given (mean).",
        (
            Quantity(
                "mean_epochs",
                "mean",
                3,
                title="Local epochs",
                about="Chosen by or given to the clients (mean).",
            ),
        ),
    ),
    Chart(
        "Weights",
        "weight",
        "The largest and the smallest weight that the server gave an upload.",
        (
            Quantity(
                "largest_weight",
                "largest",
                4,
                title="Largest weight",
                about="The largest weight that the server gave an upload.",
            ),
            Quantity("smallest_weight", "smallest", 5, "dash"),
        ),
        log=True,
    ),
    Chart(
        "Clients' multipliers",
        "multiplier",
        "The prices that clients with a budget pay for what their moves cost (mean).",
        (
            Quantity(
                "mean_multiplier",
                "mean",
                1,
                title="Clients' multipliers",
                about="The prices that clients with a budget pay for what their moves cost (mean).",
            ),
        ),
        bounds=POSITIVE,
    ),
    Chart(
        "Server's multiplier",
        "multiplier",
        "The price that a server with a budget pays for slow uploads.",
        (
            Quantity(
                "server_multiplier",
                "server",
                0,
                title="Server's multiplier",
                about="The price that a server with a budget pays for slow uploads.",
            ),
        ),
        bounds=POSITIVE,
    ),
    Chart(
        "Budgets",
        "share",
        "The share of a round's clients that exceeded their budgets, and what the server used of its own.",
        (
            Quantity(
                "over_budget",
                "clients over budget",
                1,
                title="Clients over budget",
                about="The share of a round's clients that exceeded their budgets.",
            ),
            Quantity(
                "server_used",
                "used of the server's",
                0,
                "dash",
                title="The server's budget",
                about="What the server used of its budget, as a share.",
            ),
        ),
        bounds=POSITIVE,
    ),
    Chart(
        "Agents' losses",
        "squared error",
        "Mean squared Bellman error of the critics of learning players.",
        (
            Quantity(
                "agents.clients_critic",
                "clients' critics",
                1,
                title="Clients' critics",
                about="Mean squared Bellman error of learning players.",
            ),
            Quantity(
                "agents.server_critic",
                "server's critic",
                0,
                title="Server's critic",
                about="Mean squared Bellman error of a learning player.",
            ),
        ),
        log=True,
    ),
)

MEASURES = (  # of each class of devices
    ("local_accuracy", "Local accuracy by class", "accuracy", "Mean over all clients of a class.", SHARE),
    ("seconds", "Seconds by class", "seconds", "Of training and transfer (mean).", POSITIVE),
    ("epochs", "Local epochs by class", "epochs", "What the clients chose or were given (mean).", POSITIVE),
    ("late", "Late by class", "share", "Share of the uploads that came too late.", SHARE),
    ("multiplier", "Multipliers by class", "multiplier", "Median and middle half of the clients.", POSITIVE),
    (
        "used",
        "Budgets by class",
        "share used",
        "Median and middle half; no line where none is left.",
        POSITIVE,
    ),
    ("over", "Over budget by class", "share", "Share of the clients that exceeded theirs.", SHARE),
)
STYLES = ("solid", "dash", "dot")


def of_classes(names: Sequence[str]) -> tuple[Chart, ...]:
    """A chart for each measure, with a line for each class."""

    def line(measure: str, place: int) -> Quantity:
        column = class_column(measure, place)
        band = (class_column(f"{measure}{LOW}", place), class_column(f"{measure}{HIGH}", place))
        shown = band if measure in MEDIANS else None
        return Quantity(
            column, names[place], place % len(COLOURS), STYLES[place % len(STYLES)], shown, bridges=True
        )

    return tuple(
        Chart(title, unit, about, tuple(line(measure, place) for place in range(len(names))), bounds=bounds)
        for measure, title, unit, about, bounds in MEASURES
    )


def class_column(measure: str, place: int) -> str:
    return f"{measure} of class {place}"
