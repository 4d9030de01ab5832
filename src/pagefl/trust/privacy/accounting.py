"""How much privacy rounds cost, by dp-accounting.

A round is one Gaussian mechanism on a Poisson sample of the clients. Two federations are neighbours if one
has a client that the other lacks. Epsilon is a function of how many rounds were played, so a resume needs no
state.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from math import floor, log, log10, sqrt
from types import ModuleType
from typing import Any, Literal, NamedTuple

from pagefl.core.errors import UserError

Accountant = Literal["pld", "rdp"]
INTERVAL = 1e-3  # of discretised privacy losses; rounded up, so that a coarser one never tells too little
LEAST, MOST = 0.1, 1e6  # noise multipliers between which one is searched for
CLOSE = 1.0005  # ratio of two noise multipliers that are as good as equal
DIGITS = 4  # of a noise multiplier that was searched for


class Steps(NamedTuple):
    """What rounds have in common."""

    accountant: Accountant
    noise: float  # multiplier: standard deviation over the most that one client can add
    share: float  # probability with which a client takes part
    delta: float


class Account:
    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.known = {0: 0.0}

    def epsilon(self, rounds: int) -> float:
        """Of this many rounds together."""
        if rounds not in self.known:
            self.known[rounds] = self._composed(rounds)
        return self.known[rounds]

    def _composed(self, rounds: int) -> float:
        if self.steps.accountant == "pld":
            return float(self._one.self_compose(rounds).get_epsilon_for_delta(self.steps.delta))
        found, _ = library().rdp.compute_epsilon(self._one.orders, rounds * self._one.rdp, self.steps.delta)
        return float(found)

    def affordable(self, epsilon: float, most: int) -> int:
        """The largest number of rounds, up to `most`, that cost at most this epsilon."""
        low, high = 0, 1
        while high <= most and self.epsilon(high) <= epsilon:
            low, high = high, 2 * high
        high = min(high, most + 1)
        while high - low > 1:  # low can be paid for; high cannot, or is one too many
            middle = (low + high) // 2
            low, high = (middle, high) if self.epsilon(middle) <= epsilon else (low, middle)
        return low

    @cached_property
    def _one(self) -> Any:
        """One round: its distribution of privacy losses, or an accountant of Rényi divergences."""
        accountant, noise, share, _ = self.steps
        if accountant == "pld":
            distribution = library().pld.privacy_loss_distribution
            return distribution.from_gaussian_mechanism(
                noise, sampling_prob=share, value_discretization_interval=INTERVAL
            )
        event = library().PoissonSampledDpEvent(share, library().GaussianDpEvent(noise))
        with _quiet():
            return library().rdp.RdpAccountant().compose(event)


@lru_cache
def noise_for(accountant: Accountant, epsilon: float, delta: float, rounds: int, share: float) -> float:
    """The smallest noise multiplier with which this many rounds cost at most epsilon."""

    def enough(noise: float) -> bool:
        return Account(Steps(accountant, noise, share, delta)).epsilon(rounds) <= epsilon

    high = max(LEAST, share * sqrt(2 * rounds * log(1 / delta)) / epsilon)  # about right
    while not enough(high):
        high *= 2
        if high > MOST:
            raise UserError(
                f"privacy.epsilon = {epsilon:g}: no noise gives {rounds} rounds with so little; expected "
                "more epsilon, fewer rounds, or a smaller participation"
            )
    low = high / 2
    while low > LEAST and enough(low):
        low, high = low / 2, low
    while high / low > CLOSE:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if enough(middle) else (middle, high)
    return _rounded_up(max(LEAST, high))


def library() -> ModuleType:
    try:
        import dp_accounting
        from dp_accounting.pld import privacy_loss_distribution  # noqa: F401 (an attribute from now on)
    except ModuleNotFoundError as error:
        raise UserError(
            f"privacy.epsilon needs {error.name}, which is not installed; `pip install pagefl[privacy]` "
            "brings it"
        ) from None
    found: ModuleType = dp_accounting
    return found


def _rounded_up(noise: float) -> float:
    step = 10.0 ** (floor(log10(noise)) + 1 - DIGITS)
    return float(f"{noise + step:.{DIGITS}g}")


@contextmanager
def _quiet() -> Iterator[None]:
    """It warns of Rényi orders that it leaves out. Epsilon is an upper bound with any choice of orders."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
