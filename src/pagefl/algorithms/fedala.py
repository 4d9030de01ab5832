"""FedALA. Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedALA: Adaptive Local Aggregation for Personalized
Federated Learning. AAAI 2023."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pagefl.core.algorithm import Algorithm, Clients, Local, State
from pagefl.core.layout import Layout

from .bounds import Count, Positive, Share

PATIENCE = 10  # passes whose losses must agree before the first mixing counts as converged
MOST_PASSES = 100


@dataclass(frozen=True)
class FedAla(Algorithm):
    """Before training, each client mixes its own and the shared model by learned weights, one per element.

    eta: learning rate of the mixing weights
    share: share of the client's data on which the mixing weights are learned
    layers: number of layers, from the head down, that are mixed; below them the shared model is taken
    tolerance: the first mixing ends when the standard deviation of its last losses falls below this
    """

    same_rows = (("kept.model", "upload.model", "personal"),)

    eta: Positive = 0.2
    share: Share = 0.8
    layers: Count = 1
    tolerance: Positive = 0.1

    def client_state(self, row: Tensor, layout: Layout) -> State:
        return {"model": row, "mix": torch.ones_like(row), "started": row.new_zeros(1)}

    def local(self, clients: Clients) -> Local:
        mix, started = self._learn_mix(clients)
        rows = clients.train(torch.lerp(clients.kept["model"], clients.sent["model"], mix))  # (4)
        return Local(
            upload={"model": rows}, personal=rows, kept={"model": rows, "mix": mix, "started": started}
        )

    def _learn_mix(self, clients: Clients) -> tuple[Tensor, Tensor]:
        """Of the top layers only: below, the shared model is taken as it is."""
        own, new = clients.kept["model"], clients.sent["model"]
        mix, started = clients.kept["mix"].clone(), clients.kept["started"].clone()
        top = clients.layout.groups[-self.layers :][0].start
        differs = (own != new).any(1)  # in the first round there is nothing to mix
        learning = differs
        losses: list[Tensor] = []
        while bool(learning.any()):
            last = torch.zeros_like(clients.lr)
            for who, batch in clients.batches(epochs=learning.long().cpu(), part=(0.0, self.share)):
                mixed = torch.lerp(own[who], new[who], mix[who])
                step = self.eta * (clients.gradient(mixed, batch) * (new[who] - own[who]))[:, top:]  # (5)
                last[who] = clients.losses(mixed, batch)
                mix[who, top:] = (mix[who, top:] - step).clamp(0, 1)
            losses.append(last)
            # Later rounds: one pass. The first time: until the last losses agree.
            settled = torch.zeros_like(learning)
            if len(losses) > PATIENCE:
                settled = torch.stack(losses[-PATIENCE:]).std(0, correction=0) < self.tolerance
            learning = learning & (started[:, 0] == 0) & ~settled & (len(losses) < MOST_PASSES)
        started[differs] = 1.0
        return mix, started
