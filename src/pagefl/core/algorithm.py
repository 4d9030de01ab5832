"""Algorithm: both halves of a federated method in one class. The defaults are FedAvg."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from torch import Tensor

from .descent import Batch, Descended, Direction
from .layout import Layout

Part = tuple[float, float] | None
State = dict[str, Tensor]


class Facts(NamedTuple):
    """What a client knows of its own data, and the federation's mean size."""

    sizes: Tensor  # [n]
    class_counts: Tensor  # [n, classes]
    mean_size: float


class Clients(Protocol):
    """A stack of clients in one round, as an algorithm sees it."""

    sent: State  # from the server; a row for each client
    kept: State  # their own; a row for each client; survives the round and never leaves the client
    facts: Facts
    lr: Tensor  # [n]
    epochs: Tensor  # [n]

    @property
    def layout(self) -> Layout:
        """Which columns are the head, the body, a layer."""

    @property
    def steps(self) -> Tensor:
        """How many steps `train` makes for each client with the round's own epochs."""

    def train(
        self,
        rows: Tensor,
        *,
        lr: Tensor | None = None,
        epochs: Tensor | None = None,
        mu: Tensor | float | None = None,
        anchor: Tensor | None = None,
        shift: Tensor | None = None,
        direction: Direction | None = None,
        columns: slice | None = None,
        offset: Tensor | None = None,
        part: Part = None,
    ) -> Tensor:
        """SGD on the clients' own data, in steps along gradient + mu * (row - anchor) + shift, or any `direction`.

        `columns` are trained, the rest stays; `offset` is added to the logits; `part`, such as (0.0, 0.8), is the share of
        the round's shuffled data to use.
        """

    def descend(
        self,
        rows: Tensor,
        *,
        lr: Tensor | None = None,
        epochs: Tensor | None = None,
        mu: Tensor | float | None = None,
        anchor: Tensor | None = None,
        offset: Tensor | None = None,
        repeats: int = 1,
        follow: Tensor | None = None,
        top: Tensor | None = None,
    ) -> Descended:
        """`train` for methods that move two models at once: the rows and their anchor, or a personal head on top."""

    def batches(self, *, epochs: Tensor | None = None, part: Part = None) -> Iterator[tuple[Tensor, Batch]]:
        """For methods with steps of their own: which clients are at work, and their batch."""

    def gradient(self, rows: Tensor, batch: Batch) -> Tensor: ...

    def losses(self, rows: Tensor, batch: Batch) -> Tensor: ...


@dataclass(frozen=True)
class Local:
    """What a stack of clients makes of a round."""

    upload: State  # all that the server will see
    personal: Tensor  # the models the clients are judged by
    kept: State = field(default_factory=dict)


class Algorithm:
    """Holds its constructor's arguments and nothing else: state comes in and goes out as tensors."""

    needs_body = False  # True: for models that can be split into a body and a head

    def server_state(self, row: Tensor) -> State:
        """`model`, the shared model W, is always part of it."""
        return {"model": row}

    def client_state(self, row: Tensor, layout: Layout) -> State:
        """One client's, before the first round."""
        return {}

    def send(self, server: State) -> State:
        return {"model": server["model"]}

    def adapt(self, clients: Clients) -> Tensor:
        """What becomes of the shared model before it is judged on somebody's data."""
        return clients.sent["model"]

    def local(self, clients: Clients) -> Local:
        rows = clients.train(clients.sent["model"])
        return Local(upload={"model": rows}, personal=rows)

    def candidates(self, sent: Tensor, upload: State) -> Tensor:
        """The models that uploads stand for, as the server can look at them before it weighs them."""
        return upload.get("model", sent)

    def aggregate(self, server: State, uploads: State, weights: Tensor, share: float) -> State:
        """`weights` sum to one over those who uploaded; `share` is their part of all clients."""
        if not uploads:
            return server
        return {**server, "model": weights @ uploads["model"]}
