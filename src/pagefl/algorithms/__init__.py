"""The registry: an algorithm's name leads to its class."""

from pagefl.core.algorithm import Algorithm

from .fedavg import FedAvg
from .local import LocalOnly

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "local": LocalOnly,
}
