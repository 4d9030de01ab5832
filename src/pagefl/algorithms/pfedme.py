"""pFedMe. Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes. NeurIPS 2020."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pagefl.core.algorithm import Algorithm, Clients, Local, State
from pagefl.core.uploaded import Uploaded

from .bounds import Count, NotNegative, Positive


@dataclass(frozen=True)
class PFedMe(Algorithm):
    """A personal model theta near the local model w: on each batch K steps of theta, then one of w.

    lam: strength of the pull between personal and local model
    beta: step of the server from its model to the mean of the uploaded ones
    inner_steps: steps of the personal model on each batch (K)
    personal_lr: learning rate of the personal model
    """

    same_rows = ()

    lam: NotNegative = 15.0
    beta: Positive = 1.0
    inner_steps: Count = 5
    personal_lr: Positive = 0.005

    def local(self, clients: Clients) -> Local:
        sent = clients.sent["model"]
        theta, w, *_ = clients.descend(
            sent,
            # (7): theta by SGD on f + lambda/2 |theta - w|²
            lr=torch.full_like(clients.lr, self.personal_lr),
            mu=self.lam,
            anchor=sent,
            repeats=self.inner_steps,
            anchor_rate=clients.lr * self.lam,  # Algorithm 1, line 8: w <- w - eta lambda (w - theta)
        )
        assert w is not None
        return Local(upload={"model": w}, personal=theta)

    def aggregate(self, server: State, uploads: Uploaded, weights: Tensor, share: float) -> State:
        return {"model": (1 - self.beta) * server["model"] + self.beta * uploads.sum("model", weights)}
