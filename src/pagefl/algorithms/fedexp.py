"""FedExP. Jhunjhunwala, Wang, Joshi: FedExP: Speeding Up Federated Averaging via Extrapolation. ICLR 2023."""

from dataclasses import dataclass

from torch import Tensor

from pagefl.core.algorithm import Algorithm, Clients, Local, State
from pagefl.core.layout import Layout
from pagefl.core.uploaded import Uploaded

from .bounds import Positive


@dataclass(frozen=True)
class FedExp(Algorithm):
    """FedAvg whose server goes beyond the mean, the further the more the clients' updates differ.

    epsilon: added to the squared norm of the mean update; a larger one gives shorter steps
    """

    same_rows = (("upload.model", "personal"),)

    epsilon: Positive = 1e-3

    def upload_state(self, row: Tensor, layout: Layout) -> State:
        return {"model": row, "squared": row.new_zeros(1)}

    def local(self, clients: Clients) -> Local:
        sent = clients.sent["model"]
        rows = clients.train(sent)
        # squared norms of the updates: the server then needs no single model
        squared = (rows - sent).square().sum(1, keepdim=True)
        return Local(upload={"model": rows, "squared": squared}, personal=rows)

    def aggregate(self, server: State, uploads: Uploaded, weights: Tensor, share: float) -> State:
        model = server["model"]
        update = uploads.sum("model", weights) - model
        squared = uploads.sum("squared", weights)
        step = 0.5 * squared / (update.square().sum() + self.epsilon)  # (1) of its page
        return {"model": model + step.clamp(min=1.0) * update}  # (2)
