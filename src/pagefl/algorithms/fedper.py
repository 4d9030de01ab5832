"""FedPer. Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers.
arXiv:1912.00818, 2019."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pagefl.core.algorithm import Clients, Local, State
from pagefl.core.layout import Layout

from .shared_body import SharedBody


@dataclass(frozen=True)
class FedPer(SharedBody):
    """The body is shared, and the head stays with the client. Both are trained together."""

    def client_state(self, row: Tensor, layout: Layout) -> State:
        return {"head": row[layout.head]}

    def adapt(self, clients: Clients) -> Tensor:
        """The shared body with the client's own head. The server has none: it trains one on its own data."""
        if "head" not in clients.kept:
            return clients.train(clients.sent["model"], columns=clients.layout.head)
        return torch.cat([clients.sent["model"][:, clients.layout.body], clients.kept["head"]], dim=1)

    def local(self, clients: Clients) -> Local:
        rows = clients.train(self.adapt(clients))  # (1)
        body, head = rows[:, clients.layout.body], rows[:, clients.layout.head]
        return Local(upload={"body": body}, personal=rows, kept={"head": head})
