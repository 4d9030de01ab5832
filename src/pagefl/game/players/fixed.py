"""Fixed players: how baselines are played."""

from dataclasses import dataclass

from pagefl.game.protocol import Players


@dataclass(frozen=True)
class Fixed(Players):
    """The task's lr and epochs for every client in every round, and weights by data size."""
