"""SCAFFOLD, option II. Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled
Averaging for Federated Learning. ICML 2020."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pagefl.core.algorithm import Algorithm, Clients, Local, State
from pagefl.core.layout import Layout
from pagefl.core.uploaded import Uploaded

from .bounds import Part


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """Control variates c and c_i take each client's own drift out of its steps: along gradient - c_i + c.

    A control variate is the mean gradient over a client's local training. Where players choose lr and epochs,
    the lengths of training (lr * steps) differ a thousandfold, and a correction that was measured over a
    short training carries a client far off in a long one.

    fresh: weight of the new control variate against the old one; below 1 it is smoothed over rounds
    bounded: limit each correction to the median length of training in the round before
    measured: with bounded, limit it to the length that the client's own variate was measured over, too
    """

    same_rows = (("upload.model", "personal"),)

    fresh: Part = 1.0
    bounded: bool = False
    measured: bool = False

    @property
    def needs_sgd(self) -> str:
        return "bounded = true needs lengths that are known before training" if self.bounded else ""

    def server_state(self, row: Tensor) -> State:
        return {
            "model": row,
            "control": torch.zeros_like(row),
            **({"length": row.new_zeros(1)} if self.bounded else {}),
        }

    def client_state(self, row: Tensor, layout: Layout) -> State:
        own = {"length": row.new_zeros(1)} if self.measured else {}
        return {"control": torch.zeros_like(row), **own}

    def upload_state(self, row: Tensor, layout: Layout) -> State:
        return self.server_state(row)

    def send(self, server: State) -> State:
        return server

    def local(self, clients: Clients) -> Local:
        sent, control, own = clients.sent["model"], clients.sent["control"], clients.kept["control"]
        shift = control - own
        if self.bounded:
            ahead = (clients.lr * clients.steps.to(clients.lr))[:, None]
            usual = clients.sent["length"]  # zero in the first round, where there is no correction either
            if self.measured:
                known = clients.kept["length"]  # zero for a client that has not trained yet
                usual = torch.where(known > 0, torch.minimum(usual, known), usual)
            shift = shift * (usual / ahead).clamp(max=1.0)
        trained = clients.descend(sent, shift=shift)
        rows, length = trained.rows, trained.length[:, None]
        # (4), option II: the mean gradient, by this client's own step sizes, whose sum is K_i lr_i for SGD.
        change = self.fresh * ((sent - rows) / length - shift - own)
        # Scaled by relative size, the mean change keeps c = sum_i n_i/n c_i, whoever takes part and whatever
        # p is played.
        relative = (clients.facts.sizes / clients.facts.mean_size).to(rows)[:, None]
        upload = {"model": rows, "control": relative * change, **({"length": length} if self.bounded else {})}
        kept = {"control": own + change, **({"length": length} if self.measured else {})}
        return Local(upload=upload, personal=rows, kept=kept)

    def aggregate(self, server: State, uploads: Uploaded, weights: Tensor, share: float) -> State:
        control = server["control"] + share * uploads.mean("control")  # (5)
        median = {"length": uploads["length"].median(0).values} if self.bounded else {}
        return {"model": uploads.sum("model", weights), "control": control, **median}
