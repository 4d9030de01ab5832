"""FedNova. Wang, Liu, Liang, Joshi, Poor: Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization. NeurIPS 2020."""

from dataclasses import dataclass

from torch import Tensor

from pagefl.core.algorithm import Algorithm, Clients, Local, State
from pagefl.core.layout import Layout
from pagefl.core.uploaded import Uploaded


@dataclass(frozen=True)
class FedNova(Algorithm):
    """FedAvg whose updates are divided by the length of their training before they are averaged.

    A client that trains for longer moves further. FedAvg therefore minimises a loss in which it counts for
    more; FedNova minimises the loss that the weights stand for.
    """

    same_rows = (("upload.model", "personal"),)

    def upload_state(self, row: Tensor, layout: Layout) -> State:
        return {"model": row, "length": row.new_zeros(1)}

    def local(self, clients: Clients) -> Local:
        trained = clients.descend(clients.sent["model"])
        repeated = gradients(clients.steps, clients.momentum) / clients.steps  # 1 without momentum
        length = trained.length * repeated.to(clients.lr)
        return Local(upload={"model": trained.rows, "length": length[:, None]}, personal=trained.rows)

    def aggregate(self, server: State, uploads: Uploaded, weights: Tensor, share: float) -> State:
        length = uploads["length"][:, 0]
        # (2) and (3) of its page: every update is made as long as the mean one
        scaled = weights * (weights @ length) / length
        return {"model": (1 - scaled.sum()) * server["model"] + uploads.sum("model", scaled)}


def gradients(steps: Tensor, momentum: float) -> Tensor:
    """(1), |a_i|: how many gradients a training adds up, each as often as the momentum repeats it."""
    steps = steps.double()
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
