"""What a round costs a client: seconds, bytes, joules."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pagefl.core.arrays import Flags, Floats, Integers

from .fleet import Devices, Fleet

# A radio's joules per byte: Wi-Fi's 283.17 mW per Mbit/s up and 137.01 down (Huang et al., MobiSys 2012).
JOULES_UP, JOULES_DOWN = 283.17e-3 * 8e-6, 137.01e-3 * 8e-6


class Costs(NamedTuple):
    """Of some clients: an entry for each."""

    seconds: Floats
    bytes: Floats
    joules: Floats

    def __add__(self, other: object) -> "Costs":
        assert isinstance(other, Costs)
        return Costs(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def __mul__(self, times: float | Floats | Integers) -> "Costs":  # type: ignore[override]
        return Costs(*(np.asarray(own * times, np.float64) for own in self))

    def of(self, which: Flags | Integers) -> "Costs":
        return Costs(*(own[which] for own in self))


class Prices(NamedTuple):
    """What clients know before they move."""

    epoch: Costs  # of one local epoch: a gradient of each of a client's examples
    transfer: Costs  # of receiving the model and of sending the upload

    def of(self, which: Flags | Integers) -> "Prices":
        return Prices(self.epoch.of(which), self.transfer.of(which))


@dataclass(frozen=True)
class Meter:
    """What rounds cost the clients of a fleet."""

    fleet: Fleet
    up: int  # bytes that one client uploads

    def prices(self, clients: Integers, sizes: Integers, down: int) -> Prices:
        """`sizes`: each client's training examples. `down`: bytes that one client is sent."""
        devices = self.fleet.of(clients)
        return Prices(of_training(devices, sizes), of_transfer(devices, down, self.up))

    def costs(self, clients: Integers, examples: Integers, down: int) -> Costs:
        """`examples`: gradients that each client really evaluated, in examples."""
        devices = self.fleet.of(clients)
        return of_training(devices, examples) + of_transfer(devices, down, self.up)


def of_training(devices: Devices, examples: Integers) -> Costs:
    seconds = devices.seconds * examples
    return Costs(seconds, np.zeros_like(seconds), devices.watts * seconds)


def of_transfer(devices: Devices, down: int, up: int) -> Costs:
    seconds = down / devices.down + up / devices.up
    joules = JOULES_DOWN * down + JOULES_UP * up
    return Costs(seconds, np.full_like(seconds, down + up), np.full_like(seconds, joules))
