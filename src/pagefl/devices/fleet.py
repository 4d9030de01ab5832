"""A fleet: the device of every client, by name of the fleet or from the user's own file."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from pagefl.core import rng
from pagefl.core.arrays import Flags, Floats, Integers

HOUR, DAY = 3600.0, 24.0  # seconds of an hour, hours of a day
EARLY = 1e-9  # hours: rounding must not shut out who has just become available
REFERENCE = 1e9  # training FLOPs per example of the model that a fleet's seconds per example are of

# FedScale's computing times: 0.005 s × lognormal(1, 0.6) an example, the numbers of the underlying normal.
SECONDS, LOG_SECONDS, SPREAD = 0.005, 1.0, 0.6
# Medians of LTE (Huang et al., A Close Examination of Performance and Power Characteristics of 4G LTE
# Networks, MobiSys 2012): 13 Mbit/s down, 6 Mbit/s up. Their spread is an assumption.
DOWN, UP, BANDWIDTH_SPREAD = 13e6 / 8, 6e6 / 8, 1.0
WATTS = 3.0  # of a phone that trains: an assumption
HOURS = 12.0  # of a day, in which a phone takes part: an assumption
THIRD = 0.4307  # of a normal distribution, a third is above, and a third below minus this


class Devices(NamedTuple):
    """The devices of some clients: an entry for each of them."""

    seconds: Floats  # per example of training: one gradient of the run's own model
    up: Floats  # bytes per second
    down: Floats
    watts: Floats  # while it trains
    kind: Integers  # its class, as a position in `Fleet.classes`
    opens: Floats  # hour of the simulated day from which it is available
    hours: Floats  # for how many hours of a day; 24 for always

    def available(self, clock: float | Floats) -> Flags:
        """Whether each of them is, so many seconds after the start."""
        return np.asarray((self.hours >= DAY) | ((clock / HOUR - self.opens + EARLY) % DAY < self.hours))

    def wait(self, clock: float | Floats) -> Floats:
        """Seconds until each of them is available."""
        until = (self.opens - clock / HOUR) % DAY * HOUR
        return np.where(self.available(clock), 0.0, until)


class Fleet(Protocol):
    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of devices, the fastest first."""

    @property
    def sleeps(self) -> bool:
        """Whether some devices are not always available."""

    @property
    def facts(self) -> bytes:
        """What tells it from others."""

    def of(self, clients: Integers) -> Devices:
        """The devices of these clients."""


@dataclass(frozen=True)
class Equal:
    """Everybody has the median phone, and is always available."""

    scale: float = 1.0  # the cost of the run's model, as a multiple of the reference model's

    classes = ("phone",)
    sleeps = False

    @property
    def facts(self) -> bytes:
        return repr(self).encode()

    def of(self, clients: Integers) -> Devices:
        count = len(clients)
        values = (self.scale * SECONDS * np.exp(LOG_SECONDS), UP, DOWN, WATTS)
        numbers = [np.full(count, value) for value in values]
        return Devices._make([*numbers, np.zeros(count, np.int64), np.zeros(count), np.full(count, DAY)])


@dataclass(frozen=True)
class Phones:
    """Phones, each drawn from its own stream: of a million clients, only those that are asked for cost."""

    seed: int
    scale: float = 1.0
    hours: float = HOURS  # of a day, in which a phone is available

    classes = ("fast", "medium", "slow")

    @property
    def sleeps(self) -> bool:
        return self.hours < DAY

    @property
    def facts(self) -> bytes:
        return repr(self).encode()

    def of(self, clients: Integers) -> Devices:
        keys = rng.keys(self.seed, "device", 0, clients.tolist())
        speed, up, down = rng.normals(keys, 3).T
        seconds = self.scale * SECONDS * np.exp(LOG_SECONDS + SPREAD * speed)
        return Devices(
            seconds,
            UP * np.exp(BANDWIDTH_SPREAD * up),
            DOWN * np.exp(BANDWIDTH_SPREAD * down),
            np.full(len(clients), WATTS),
            np.searchsorted([-THIRD, THIRD], speed),
            DAY * rng.uniforms(rng.keys(self.seed, "device's night", 0, clients.tolist()), 1)[:, 0],
            np.full(len(clients), self.hours),
        )


FLEETS: dict[str, Callable[[int, float, float], Fleet]] = {  # of a seed, a scale, and hours
    "equal": lambda seed, scale, hours: Equal(scale),
    "phones": Phones,
}
