"""Ditto. Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization.
ICML 2021."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pagefl.core.algorithm import Algorithm, Clients, Local, State
from pagefl.core.layout import Layout

from .bounds import Count, NotNegative


@dataclass(frozen=True)
class Ditto(Algorithm):
    """FedAvg, and beside it a personal model that each client keeps and pulls towards what it was sent.

    lam: strength of the pull of the personal model towards the shared one
    personal_epochs: epochs of the personal model in each round
    """

    same_rows = (("kept.personal", "personal"),)

    lam: NotNegative = 0.1
    personal_epochs: Count = 20

    def client_state(self, row: Tensor, layout: Layout) -> State:
        return {"personal": row}

    def local(self, clients: Clients) -> Local:
        sent = clients.sent["model"]
        rows = clients.train(sent)
        epochs = torch.full_like(clients.epochs, self.personal_epochs)
        personal = clients.train(clients.kept["personal"], mu=self.lam, anchor=sent, epochs=epochs)
        return Local(upload={"model": rows}, personal=personal, kept={"personal": personal})
