"""Local training without communication: the control that every table of personalised methods needs."""

from dataclasses import dataclass

from torch import Tensor

from pagefl.core.algorithm import Algorithm, Clients, Local, State
from pagefl.core.layout import Layout


@dataclass(frozen=True)
class LocalOnly(Algorithm):
    """Each client trains its own model. Nothing is sent, so the shared model stays as it was."""

    same_rows = (("kept.model", "personal"),)

    def client_state(self, row: Tensor, layout: Layout) -> State:
        return {"model": row}

    def upload_state(self, row: Tensor, layout: Layout) -> State:
        return {}

    def adapt(self, clients: Clients) -> Tensor:
        """There is no shared model to speak of: a client is evaluated by its own, the server by the first."""
        return clients.kept.get("model", clients.sent["model"])

    def local(self, clients: Clients) -> Local:
        rows = clients.train(clients.kept["model"])
        return Local(upload={}, personal=rows, kept={"model": rows})
