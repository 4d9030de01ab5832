"""Cosine players: lr falls along half a cosine (Loshchilov and Hutter, SGDR, ICLR 2017, without restarts)."""

from dataclasses import dataclass
from math import cos, pi

import numpy as np

from pagefl.core.arrays import Integers
from pagefl.game.protocol import ClientPolicy, Moves, Observation, Players, Setup

from .bounds import Fraction


@dataclass(frozen=True)
class Cosine(Players):
    """lr falls along half a cosine from the task's own to nearly zero; epochs stay; weights by data size.

    floor: learning rate in the last round, as a share of the first
    """

    floor: Fraction = 1e-3

    def client_policy(self, setup: Setup) -> ClientPolicy:
        return CosineClients(setup, self.floor)


class CosineClients(ClientPolicy):
    def __init__(self, setup: Setup, floor: float) -> None:
        super().__init__(setup)
        self.floor = floor

    def act(self, round: int, clients: Integers, seen: Observation) -> Moves:
        height = (1 + cos(pi * self.setup.passed(round))) / 2
        lr = self.setup.lr * (self.floor + (1 - self.floor) * height)
        return Moves(np.full(len(clients), lr), np.full(len(clients), self.setup.epochs))
