"""Barrier: when a round ends, and so whose uploads count in it."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from pagefl.core.arrays import Floats

Kind = Literal["wait", "deadline", "first"]


@dataclass(frozen=True)
class Barrier:
    """`wait`: for all. `deadline`: for so many seconds. `first`: for as many as are wanted.

    No round ends with nobody: past its deadline the server waits for the first upload.
    """

    kind: Kind = "wait"
    deadline: float = 0.0  # seconds

    def end(self, begun: float, arrivals: Floats, wanted: int) -> float:
        """When the round ends that began at `begun`. `arrivals`: of all uploads that are under way."""
        if not len(arrivals):
            return begun
        ends = arrivals.max()
        if self.kind == "deadline":
            ends = min(ends, max(begun + self.deadline, arrivals.min()))
        if self.kind == "first":
            ends = np.sort(arrivals)[min(wanted, len(arrivals)) - 1]
        return float(max(begun, ends))
