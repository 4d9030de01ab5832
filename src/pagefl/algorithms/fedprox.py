"""FedProx. Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks.
MLSys 2020."""

from dataclasses import dataclass

from pagefl.core.algorithm import Algorithm, Clients, Local

from .bounds import NotNegative


@dataclass(frozen=True)
class FedProx(Algorithm):
    """FedAvg whose clients are pulled back to the model they were sent: + mu/2 |w - W|² in the local loss.

    mu: strength of the pull
    """

    same_rows = (("upload.model", "personal"),)

    mu: NotNegative = 1e-4

    def local(self, clients: Clients) -> Local:
        sent = clients.sent["model"]
        rows = clients.train(sent, mu=self.mu, anchor=sent)
        return Local(upload={"model": rows}, personal=rows)
