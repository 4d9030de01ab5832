"""FedRECON. Singhal, Sidahmed, Garrett, Wu, Rush, Prakash: Federated Reconstruction: Partially Local
Federated Learning. NeurIPS 2021."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pagefl.core.algorithm import Clients, Local, State
from pagefl.core.uploaded import Uploaded

from .bounds import Count, Positive, Share
from .shared_body import SharedBody


@dataclass(frozen=True)
class FedRecon(SharedBody):
    """The body is shared. The head is trained anew, on a support share of the data, each time it is needed.

    reconstruction_epochs: epochs of the head when it is trained anew
    support: share of the client's data on which the head is trained; the body is trained on the rest
    server_lr: step of the server from its body to the mean of the uploaded ones
    """

    reconstruction_epochs: Count = 2
    support: Share = 0.1
    server_lr: Positive = 0.1

    def adapt(self, clients: Clients) -> Tensor:
        """Algorithm 1, RECONSTRUCT: from the first head, with the body held fixed."""
        epochs = torch.full_like(clients.epochs, self.reconstruction_epochs)
        return clients.train(
            clients.sent["model"], columns=clients.layout.head, part=(0.0, self.support), epochs=epochs
        )

    def local(self, clients: Clients) -> Local:
        whole = self.adapt(clients)
        rows = clients.train(whole, columns=clients.layout.body, part=(self.support, 1.0))
        return Local(upload={"body": rows[:, clients.layout.body]}, personal=rows)

    def aggregate(self, server: State, uploads: Uploaded, weights: Tensor, share: float) -> State:
        body, model = uploads.sum("body", weights), server["model"].clone()
        model[: len(body)] += self.server_lr * (body - model[: len(body)])
        return {"model": model}
