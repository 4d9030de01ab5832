"""What a round costs a client: seconds, bytes, joules."""

from typing import NamedTuple

import numpy as np

from pagefl.core.arrays import Floats

from .fleet import Devices

# A radio's joules per byte: Wi-Fi's 283.17 mW per Mbit/s up and 137.01 down (Huang et al., MobiSys 2012).
JOULES_UP, JOULES_DOWN = 283.17e-3 * 8e-6, 137.01e-3 * 8e-6


class Traffic(NamedTuple):
    """Bytes that one client really sends and receives in a round."""

    down: float
    up: float


class Costs(NamedTuple):
    """Of some clients: an entry for each."""

    seconds: Floats
    bytes: Floats
    joules: Floats

    def __add__(self, other: object) -> "Costs":  # type: ignore[override]  # of a tuple, it would append
        assert isinstance(other, Costs)
        return Costs(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def __mul__(self, times: object) -> "Costs":  # type: ignore[override]
        return Costs(*(np.asarray(own * times) for own in self))


class Prices(NamedTuple):
    """What clients know before they move."""

    epoch: Costs  # of one local epoch over all of a client's examples, one gradient for each
    transfer: Costs  # of receiving the model and of sending the upload


def of_training(devices: Devices, examples: Floats) -> Costs:
    """`examples`: gradients that each client evaluates, in examples."""
    seconds = devices.seconds * examples
    return Costs(seconds, np.zeros_like(seconds), devices.watts * seconds)


def of_transfer(devices: Devices, traffic: Traffic) -> Costs:
    seconds = traffic.down / devices.down + traffic.up / devices.up
    moved, joules = traffic.down + traffic.up, JOULES_DOWN * traffic.down + JOULES_UP * traffic.up
    return Costs(seconds, np.full_like(seconds, moved), np.full_like(seconds, joules))


def of_round(devices: Devices, examples: Floats, traffic: Traffic) -> Costs:
    return of_training(devices, examples) + of_transfer(devices, traffic)


def prices(devices: Devices, sizes: Floats, traffic: Traffic) -> Prices:
    """`sizes`: each client's training examples."""
    return Prices(of_training(devices, sizes), of_transfer(devices, traffic))
