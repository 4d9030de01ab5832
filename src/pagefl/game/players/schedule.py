"""Scheduled players: lr and epochs fall over the run, by a plan."""

from dataclasses import dataclass

import numpy as np

from pagefl.core.arrays import Integers
from pagefl.game.protocol import ClientPolicy, Moves, Observation, Players, Setup

from .bounds import Count, Positive


@dataclass(frozen=True)
class Schedule(Players):
    """lr falls geometrically and epochs linearly over the run, from the task's own; weights by data size.

    lr_last: learning rate in the last round
    epochs_last: local epochs in the last round
    """

    lr_last: Positive = 1e-3
    epochs_last: Count = 1

    def client_policy(self, setup: Setup) -> ClientPolicy:
        return ScheduledClients(setup, self.lr_last, self.epochs_last)


class ScheduledClients(ClientPolicy):
    def __init__(self, setup: Setup, lr_last: float, epochs_last: int) -> None:
        super().__init__(setup)
        self.lr_last, self.epochs_last = lr_last, epochs_last

    def act(self, round: int, clients: Integers, seen: Observation) -> Moves:
        passed = self.setup.passed(round)
        lr = self.setup.lr * (self.lr_last / self.setup.lr) ** passed
        epochs = int(self.setup.epochs + (self.epochs_last - self.setup.epochs) * passed + 0.5)
        return Moves(np.full(len(clients), lr), np.full(len(clients), epochs))
