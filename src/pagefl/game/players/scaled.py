"""Epochs scaled to speed: the obvious heuristic for unequal devices."""

from dataclasses import dataclass

import numpy as np

from pagefl.core.arrays import Integers
from pagefl.game.protocol import ClientPolicy, Moves, Observation, Players, Setup

from .bounds import Count


@dataclass(frozen=True)
class Scaled(Players):
    """All clients of a round train for about as long: the median client for the task's epochs.

    The task's lr, and weights by data size. Without simulated devices: as fixed.

    epochs_max: largest number of epochs of a fast client
    """

    epochs_max: Count = 20

    def client_policy(self, setup: Setup) -> ClientPolicy:
        return ScaledClients(setup, self.epochs_max)


class ScaledClients(ClientPolicy):
    looks_at_others = True  # at their speeds and sizes

    def __init__(self, setup: Setup, epochs_max: int) -> None:
        super().__init__(setup)
        self.epochs_max = epochs_max

    def act(self, round: int, clients: Integers, seen: Observation) -> Moves:
        usual = super().act(round, clients, seen)
        if seen.prices is None or not len(clients):
            return usual
        seconds = seen.prices.epoch.seconds
        epochs = np.rint(self.setup.epochs * np.median(seconds) / seconds)
        return Moves(usual.lr, np.clip(epochs, 1, self.epochs_max).astype(np.int64))
