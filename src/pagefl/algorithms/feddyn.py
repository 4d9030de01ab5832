"""FedDyn. Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic
Regularization. ICLR 2021."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pagefl.core.algorithm import Algorithm, Clients, Local, State
from pagefl.core.layout import Layout
from pagefl.core.uploaded import Uploaded

from .bounds import Positive


@dataclass(frozen=True)
class FedDyn(Algorithm):
    """Each client adds its past moves to its loss, so that local optima come to agree with the global one.

    alpha: strength of the dynamic regularisation
    """

    same_rows = (("upload.model", "personal"),)

    alpha: Positive = 0.01

    def server_state(self, row: Tensor) -> State:
        return {"model": row, "moved": torch.zeros_like(row)}

    def client_state(self, row: Tensor, layout: Layout) -> State:
        return {"moved": torch.zeros_like(row)}

    def local(self, clients: Clients) -> Local:
        sent, moved = clients.sent["model"], clients.kept["moved"]
        # Unequal data, as in the authors' program: alpha by data share, so that every client weighs by its
        # size.
        alpha = (self.alpha * clients.facts.mean_size / clients.facts.sizes).to(sent)
        # (1), moved = -(gradient state)/alpha
        rows = clients.train(sent, mu=alpha, anchor=sent, shift=alpha[:, None] * moved)
        return Local(upload={"model": rows}, personal=rows, kept={"moved": moved + rows - sent})  # (2)

    def aggregate(self, server: State, uploads: Uploaded, weights: Tensor, share: float) -> State:
        mean = uploads.mean("model")
        # (3), h = -alpha * moved: absent clients have not moved
        moved = server["moved"] + share * (mean - server["model"])
        return {"model": uploads.sum("model", weights) + moved, "moved": moved}
