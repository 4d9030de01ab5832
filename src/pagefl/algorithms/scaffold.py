"""SCAFFOLD, option II. Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning. ICML 2020."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pagefl.core.algorithm import Algorithm, Clients, Local, State
from pagefl.core.layout import Layout

from .bounds import Part


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """Control variates c and c_i take each client's own drift out of its steps: along gradient - c_i + c.

    Where players change lr and epochs from round to round, a control measured on a long way is used on a short one, and
    those who go far dominate the mean. `fresh` below one smooths the controls, `normalise` averages by distance (as FedNova).
    """

    fresh: Part = 1.0
    normalise: bool = False

    def server_state(self, row: Tensor) -> State:
        return {"model": row, "control": torch.zeros_like(row)}

    def client_state(self, row: Tensor, layout: Layout) -> State:
        return {"control": torch.zeros_like(row)}

    def send(self, server: State) -> State:
        return server

    def local(self, clients: Clients) -> Local:
        sent, control, own = clients.sent["model"], clients.sent["control"], clients.kept["control"]
        rows = clients.train(sent, shift=control - own)
        # (4), option II: the mean gradient on the way, by this client's own number of steps and learning rate.
        way = (clients.lr * clients.steps.to(clients.lr))[:, None]
        change = self.fresh * ((sent - rows) / way - control)
        # Scaled by relative size, the mean change keeps c = sum_i n_i/n c_i, whoever takes part and whatever p is played.
        relative = (clients.facts.sizes / clients.facts.mean_size).to(rows)[:, None]
        upload = {"model": rows, "control": relative * change, **({"way": way} if self.normalise else {})}
        return Local(upload=upload, personal=rows, kept={"control": own + change})

    def aggregate(self, server: State, uploads: State, weights: Tensor, share: float) -> State:
        control = server["control"] + share * uploads["control"].mean(0)  # (5)
        if self.normalise:
            way = uploads["way"][:, 0]
            step = torch.zeros_like(server["model"])
            for row, weight in zip(uploads["model"], (weights / way).tolist(), strict=True):  # no second matrix of rows
                step.add_(row - server["model"], alpha=weight)
            return {"model": server["model"] + (weights @ way) * step, "control": control}
        return {"model": weights @ uploads["model"], "control": control}
