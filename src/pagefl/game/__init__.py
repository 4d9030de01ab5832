"""The registry of players: a name leads to the class whose arguments are their settings."""

from .learning import DapFlPlayers, PagePlayers
from .players import FixedPlayers, Players, RandomPlayers, SchedulePlayers
from .sharing import SharedPlayers

PLAYERS: dict[str, type[Players]] = {
    "fixed": FixedPlayers,
    "random": RandomPlayers,
    "schedule": SchedulePlayers,
    "dapfl": DapFlPlayers,
    "page": PagePlayers,
    "page-shared": SharedPlayers,
}
