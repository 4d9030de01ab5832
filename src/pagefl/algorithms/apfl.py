"""APFL. Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning. arXiv:2003.13461, 2020."""

from dataclasses import dataclass

from torch import Tensor

from pagefl.core.algorithm import Algorithm, Clients, Local, State
from pagefl.core.layout import Layout

from .bounds import Mix


@dataclass(frozen=True)
class Apfl(Algorithm):
    """FedAvg's w and a model v of the client's own, mixed: the personal model is alpha v + (1 - alpha) w.

    alpha: weight of the client's own model; 0 is FedAvg, 1 is local training
    adaptive: each client learns its own alpha, by one step in each round
    """

    same_rows = ()
    needs_sgd = "its steps are its own"

    alpha: Mix = 0.5
    adaptive: bool = False

    def client_state(self, row: Tensor, layout: Layout) -> State:
        return {"own": row, "alpha": row.new_full((1,), self.alpha)}

    def local(self, clients: Clients) -> Local:
        w, v = clients.sgd(clients.sent["model"]), clients.sgd(clients.kept["own"])
        alpha = clients.kept["alpha"].clone()
        for step, (who, batch) in enumerate(clients.batches()):
            apart, mix = v.rows[who] - w.rows[who], alpha[who]
            slope = clients.gradient(w.rows[who] + mix * apart, batch)
            w.step(who, clients.gradient(w.rows[who], batch))  # (1)
            v.step(who, mix * slope)  # (2): the derivative by v
            if self.adaptive and step == 0:  # (3): the derivative by alpha
                alpha[who] -= clients.lr[who, None] * (apart * slope).sum(1, keepdim=True)
                alpha.clamp_(0, 1)
        personal = alpha * v.rows + (1 - alpha) * w.rows
        return Local(upload={"model": w.rows}, personal=personal, kept={"own": v.rows, "alpha": alpha})
