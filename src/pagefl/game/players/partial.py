"""Partial work: clients train for as long as their deadline lets them.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks (FedProx), MLSys
2020, where clients solve their problems more or less exactly (γ-inexact) by their systems' constraints.
"""

from dataclasses import dataclass

import numpy as np

from pagefl.core.arrays import Integers
from pagefl.game.protocol import ClientPolicy, Moves, Observation, Players, Setup


@dataclass(frozen=True)
class Partial(Players):
    """As many epochs as fit before devices.deadline, at most the task's own and at least one.

    The task's lr, and weights by data size. Without a deadline and simulated devices: as fixed.
    """

    def client_policy(self, setup: Setup) -> ClientPolicy:
        return PartialClients(setup)


class PartialClients(ClientPolicy):
    def act(self, round: int, clients: Integers, seen: Observation) -> Moves:
        usual = super().act(round, clients, seen)
        if seen.prices is None or self.setup.deadline is None:
            return usual
        left = self.setup.deadline - seen.prices.transfer.seconds
        fitting = np.floor(left / seen.prices.epoch.seconds * (1 + 1e-12))
        return Moves(usual.lr, np.clip(fitting, 1, usual.epochs).astype(np.int64))
