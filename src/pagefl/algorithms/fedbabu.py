"""FedBABU. Oh, Kim, Yun: FedBABU: Toward Enhanced Representation for Federated Image Classification.
ICLR 2022."""

from dataclasses import dataclass
from typing import Literal

import torch

from pagefl.core.algorithm import Clients, Local

from .bounds import Count
from .shared_body import SharedBody


@dataclass(frozen=True)
class FedBabu(SharedBody):
    """The body is trained under a head that never moves. A personal model is the whole, fine-tuned.

    tune_epochs: epochs of fine-tuning
    tune: what is fine-tuned: the model, its head or its body
    """

    tune_epochs: Count = 5
    tune: Literal["model", "head", "body"] = "model"

    def local(self, clients: Clients) -> Local:
        layout = clients.layout
        rows = clients.train(clients.sent["model"], columns=layout.body)  # (1)
        tuned = {"model": slice(0, layout.width), "head": layout.head, "body": layout.body}[self.tune]
        epochs = torch.full_like(clients.epochs, self.tune_epochs)
        personal = clients.train(rows, columns=tuned, epochs=epochs)  # (2)
        return Local(upload={"body": rows[:, layout.body]}, personal=personal)
