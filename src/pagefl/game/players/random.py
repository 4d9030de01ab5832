"""Random players: the control without which nobody can tell whether learning helped."""

from dataclasses import dataclass

from pagefl.core import rng
from pagefl.core.arrays import Floats, Integers
from pagefl.game.protocol import ClientPolicy, Moves, Observation, Players, ServerPolicy, Setup
from pagefl.game.ranges import Ranges
from pagefl.game.uploads import Uploads

from .bounds import Count, Positive


@dataclass(frozen=True)
class Random(Players):
    """Both sides choose at random, in the same ranges as players that learn.

    lr_min: smallest learning rate that can be chosen
    lr_max: largest learning rate that can be chosen
    epochs_max: largest number of local epochs that can be chosen
    temperature: of the softmax that makes weights; smaller values give larger differences
    """

    lr_min: Positive = 1e-3
    lr_max: Positive = 0.1
    epochs_max: Count = 20
    temperature: Positive = 1.0

    def client_policy(self, setup: Setup) -> ClientPolicy:
        return RandomClients(setup, self._ranges)

    def server_policy(self, setup: Setup) -> ServerPolicy:
        return RandomServer(setup, self._ranges)

    @property
    def _ranges(self) -> Ranges:
        return Ranges(self.lr_min, self.lr_max, self.epochs_max, self.temperature)


class RandomClients(ClientPolicy):
    def __init__(self, setup: Setup, ranges: Ranges) -> None:
        super().__init__(setup)
        self.ranges = ranges

    def act(self, round: int, clients: Integers, seen: Observation) -> Moves:
        keys = rng.keys(self.setup.seed, "random player", round, (self.setup.first + clients).tolist())
        action = 2 * rng.uniforms(keys, 2) - 1
        return Moves(self.ranges.lr(action[:, 0]), self.ranges.epochs(action[:, 1]))


class RandomServer(ServerPolicy):
    def __init__(self, setup: Setup, ranges: Ranges) -> None:
        super().__init__(setup)
        self.ranges = ranges

    def act(self, round: int, clients: Integers, uploads: Uploads) -> Floats:
        action = (
            2 * rng.uniforms(rng.keys(self.setup.seed, "random server", round, clients.tolist()), 1)[:, 0] - 1
        )
        return self.ranges.weights(action)
