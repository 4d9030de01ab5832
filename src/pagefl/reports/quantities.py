"""What reports draw by round: every quantity, and the charts they stand in."""

from typing import NamedTuple


class Quantity(NamedTuple):
    column: str
    label: str
    hue: int  # of a single run's line
    dash: str = "solid"
    spread: str | None = None  # column to draw as a band around the line
    title: str = ""  # of the chart that compares several runs; without one there is none
    about: str = ""


class Chart(NamedTuple):
    title: str
    unit: str
    about: str
    shown: tuple[Quantity, ...]
    log: bool = False
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
                title="Personal accuracy",
                about="The clients' models on their own test data, after the personal step (mean).",
            ),
        ),
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
        along="hours",
    ),
    Chart(
        "Spread over the clients",
        "local accuracy",
        "Local accuracy: mean, one standard deviation around it, and the mean of the worst tenth.",
        (
            Quantity("local_accuracy", "mean", 1, spread="local_std"),
            Quantity(
                "local_worst10",
                "worst tenth",
                3,
                "dash",
                title="Worst tenth",
                about="Local accuracy of the worst tenth of the clients (mean).",
            ),
        ),
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
