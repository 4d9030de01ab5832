"""Fed-ROD. Chen, Chao: On Bridging Generic and Personalized Federated Learning for Image Classification.
ICLR 2022."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pagefl.core.algorithm import Algorithm, Clients, Local, State
from pagefl.core.layout import Layout


@dataclass(frozen=True)
class FedRod(Algorithm):
    """Body and generic head by balanced softmax, shared; a personal head on top of the generic one, kept.

    The head must be one linear layer: then generic + personal logits are those of the two heads' sum.
    """

    same_rows = ()

    def client_state(self, row: Tensor, layout: Layout) -> State:
        return {"head": torch.zeros_like(row[layout.head])}

    def local(self, clients: Clients) -> Local:
        # classes that a client lacks: minus infinity
        priors = clients.facts.class_counts.to(clients.sent["model"]).log()
        rows, _, head, _ = clients.descend(clients.sent["model"], offset=priors, top=clients.kept["head"])
        assert head is not None
        personal = rows.clone()
        personal[:, clients.layout.head] += head
        return Local(upload={"model": rows}, personal=personal, kept={"head": head})
