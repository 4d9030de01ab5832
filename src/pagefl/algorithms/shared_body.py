"""What methods have in common that share the body of the model and not its head."""

import torch
from torch import Tensor

from pagefl.core.algorithm import Algorithm, State
from pagefl.core.layout import Layout
from pagefl.core.uploaded import Uploaded


class SharedBody(Algorithm):
    """Clients upload bodies, and the server averages them. The head of W stays as it was at the start."""

    needs_body = True
    same_rows = ()

    def upload_state(self, row: Tensor, layout: Layout) -> State:
        return {"body": row[layout.body]}

    def origin(self, sent: State, layout: Layout) -> State:
        return {"body": sent["model"][layout.body]}

    def candidates(self, sent: Tensor, upload: State) -> Tensor:
        body = upload["body"]
        return torch.cat([body, sent[:, body.shape[1] :].expand(len(body), -1)], dim=1)

    def aggregate(self, server: State, uploads: Uploaded, weights: Tensor, share: float) -> State:
        body = uploads.sum("body", weights)
        return {"model": torch.cat([body, server["model"][len(body) :]])}
