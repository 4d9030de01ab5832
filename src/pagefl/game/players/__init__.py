"""The registry: the name of players leads to their class. A class's arguments are its settings."""

from pagefl.game.protocol import Players

from .cosine import Cosine
from .dapfl import DapFl
from .fedex import FedEx
from .fixed import Fixed
from .page import Page
from .partial import Partial
from .random import Random
from .scaled import Scaled
from .schedule import Schedule
from .shared import PageShared

PLAYERS: dict[str, type[Players]] = {
    "fixed": Fixed,
    "random": Random,
    "schedule": Schedule,
    "cosine": Cosine,
    "partial": Partial,
    "scaled": Scaled,
    "fedex": FedEx,
    "dapfl": DapFl,
    "page": Page,
    "page-shared": PageShared,
}
