"""FedRep. Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized
Federated Learning. ICML 2021."""

from dataclasses import dataclass

import torch

from pagefl.core.algorithm import Clients, Local

from .bounds import Count
from .fedper import FedPer


@dataclass(frozen=True)
class FedRep(FedPer):
    """The body is shared, and the head stays with the client. The head is trained first, then the body.

    head_epochs: epochs of the head in each round; the body is trained for the round's own epochs
    """

    head_epochs: Count = 10

    def local(self, clients: Clients) -> Local:
        epochs = torch.full_like(clients.epochs, self.head_epochs)
        rows = clients.train(self.adapt(clients), columns=clients.layout.head, epochs=epochs)  # (1)
        rows = clients.train(rows, columns=clients.layout.body)  # (2)
        body, head = rows[:, clients.layout.body], rows[:, clients.layout.head]
        return Local(upload={"body": body}, personal=rows, kept={"head": head})
