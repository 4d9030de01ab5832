"""Terms: what is agreed before the game begins."""

from dataclasses import dataclass
from typing import Literal

from .ranges import Protocol

Factor = Literal["p", "alpha", "eta"]


@dataclass(frozen=True)
class Terms:
    """How moves are rewarded, who takes part, and which factors are held fixed."""

    penalty: float = 0.0
    reward: Literal["aggregate", "weighted-local"] = "aggregate"
    protocol: Protocol = "clean"
    freeze: frozenset[Factor] = frozenset()
    participation: float = 1.0
    absences: bool = False  # some clients may not take part in a round, although participation is 1
    on_bad_upload: Literal["quarantine", "stop"] = "quarantine"
    rewards: bool = False  # compute them even if no policy learns by them
    lr_decay: float = 1.0  # of every learning rate, after each round
    private: bool = False  # all uploads weigh the same, and nobody's size matters
    largest_size_share: float = 1.0  # of all examples, that one client's claim counts for

    @property
    def released(self) -> bool:
        """States and rewards on test splits, as in the published programs."""
        return self.protocol == "released"
