"""Per-FedAvg. Fallah, Mokhtari, Ozdaglar: Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach. NeurIPS 2020."""

from dataclasses import dataclass

import torch

from pagefl.core.algorithm import Algorithm, Clients, Local

from .bounds import Positive


@dataclass(frozen=True)
class PerFedAvg(Algorithm):
    """A shared model from which one step on a client's own data leads to a good personal model.

    inner_lr: learning rate of the step from the shared to the personal model (the paper's alpha)
    hessian_free: True: keep the Hessian of the meta-gradient, by finite differences (HF); False: drop it (FO)
    delta: step of the finite difference, as a multiple of the gradient
    """

    same_rows = ()
    needs_sgd = "its steps are its own"

    inner_lr: Positive = 0.01
    hessian_free: bool = False
    delta: Positive = 0.001

    def local(self, clients: Clients) -> Local:
        sent, w = clients.sent["model"], clients.sgd(clients.sent["model"])
        # independent batches for every gradient of a step: D, D' and, for the Hessian, D''
        draws = [clients.batches() for _ in range(3 if self.hessian_free else 2)]
        for (who, inner), (_, outer), *more in zip(*draws, strict=True):
            rows = w.rows[who]
            adapted = rows - self.inner_lr * clients.gradient(rows, inner)  # (1)
            direction = clients.gradient(adapted, outer)  # (2), FO
            for _, third in more:  # (3), HF
                ahead = clients.gradient(rows + self.delta * direction, third)
                behind = clients.gradient(rows - self.delta * direction, third)
                direction = direction - self.inner_lr * (ahead - behind) / (2 * self.delta)
            w.step(who, direction)
        lr, once = torch.full_like(clients.lr, self.inner_lr), torch.ones_like(clients.epochs)
        return Local(upload={"model": w.rows}, personal=clients.train(sent, lr=lr, epochs=once))
