"""SCAFFOLD, option II. Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning. ICML 2020."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pagefl.core.algorithm import Algorithm, Clients, Local, State
from pagefl.core.layout import Layout


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """Control variates c and c_i take each client's own drift out of its steps: along gradient - c_i + c."""

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
        travelled = (clients.lr * clients.steps.to(clients.lr))[:, None]
        new = own - control + (sent - rows) / travelled
        # Scaled by relative size, the mean change keeps c = sum_i n_i/n c_i, whoever takes part and whatever p is played.
        relative = (clients.facts.sizes / clients.facts.mean_size).to(rows)[:, None]
        return Local(upload={"model": rows, "control": relative * (new - own)}, personal=rows, kept={"control": new})

    def aggregate(self, server: State, uploads: State, weights: Tensor, share: float) -> State:
        control = server["control"] + share * uploads["control"].mean(0)  # (5)
        return {"model": weights @ uploads["model"], "control": control}
