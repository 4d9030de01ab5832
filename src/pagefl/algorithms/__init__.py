"""The registry: an algorithm's name leads to its class."""

from pagefl.core.algorithm import Algorithm

from .apfl import Apfl
from .ditto import Ditto
from .fedadam import FedAdam
from .fedala import FedAla
from .fedavg import FedAvg
from .fedavgm import FedAvgM
from .fedbabu import FedBabu
from .feddyn import FedDyn
from .fedexp import FedExp
from .fednova import FedNova
from .fedper import FedPer
from .fedprox import FedProx
from .fedrecon import FedRecon
from .fedrep import FedRep
from .fedrod import FedRod
from .local import LocalOnly
from .perfedavg import PerFedAvg
from .pfedme import PFedMe
from .scaffold import Scaffold

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "feddyn": FedDyn,
    "fedrecon": FedRecon,
    "pfedme": PFedMe,
    "ditto": Ditto,
    "fedala": FedAla,
    "fedrod": FedRod,
    "fednova": FedNova,
    "fedavgm": FedAvgM,
    "fedadam": FedAdam,
    "fedexp": FedExp,
    "fedper": FedPer,
    "fedrep": FedRep,
    "fedbabu": FedBabu,
    "apfl": Apfl,
    "perfedavg": PerFedAvg,
    "local": LocalOnly,
}
