"""The clock of a deployment. It is read, not simulated."""

from time import monotonic

import torch

from pagefl.core.algorithm import State
from pagefl.core.arrays import Integers
from pagefl.core.server import ServerHalf
from pagefl.game.clock import NOW
from pagefl.game.messages import Answer


class WallClock:
    """Seconds of all rounds so far, from their orders to their last reply."""

    def __init__(self, half: ServerHalf, share: float) -> None:
        self.half, self.share = half, share
        self.now, self.begun = 0.0, monotonic()

    def draw(self, round: int) -> Integers:
        self.begun = monotonic()
        return self.half.participants(round, self.share)

    def counted(self, round: int, answer: Answer) -> Answer:
        self.now += monotonic() - self.begun
        return answer

    def state(self) -> State:
        return {NOW: torch.tensor([self.now], dtype=torch.float64)}

    def load(self, tensors: State) -> None:
        """A checkpoint of before has no clock."""
        self.now = float(tensors[NOW][0]) if NOW in tensors else 0.0
