"""FedAvg. McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks
from Decentralized Data. AISTATS 2017."""

from dataclasses import dataclass

from pagefl.core.algorithm import Algorithm


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Clients train the shared model; the server averages. The defaults of every other algorithm."""

    same_rows = (("upload.model", "personal"),)
