"""Algorithm: both halves of a federated method in one class. The defaults are FedAvg."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from torch import Tensor

from .layout import Layout

if TYPE_CHECKING:
    from .training.descent import Batch, Descended, Sgd
    from .uploaded import Uploaded

State = dict[str, Tensor]


def bytes_of(*states: State) -> int:
    """Of these tensors."""
    return sum(value.nbytes for state in states for value in state.values())


class Facts(NamedTuple):
    """What clients know of their own data, and the federation's mean size."""

    sizes: Tensor  # [n]
    class_counts: Tensor  # [n, classes]
    mean_size: float | Tensor  # where it is a secret: each client's own size, so that all count the same


class Clients(Protocol):
    """A stack of n clients in one round, as an algorithm sees it. Every tensor has one row per client."""

    sent: State  # from the server
    kept: State  # each client's own state: it survives the round and never leaves the client
    facts: Facts
    lr: Tensor  # [n]
    epochs: Tensor  # [n]

    @property
    def layout(self) -> Layout:
        """Which columns of a row are the head, the body, a layer."""

    @property
    def steps(self) -> Tensor:
        """How many steps `train` makes for each client with the round's own epochs."""

    @property
    def momentum(self) -> float:
        """The momentum of `train`, the same for all clients."""

    def train(self, rows: Tensor, **options: Any) -> Tensor:
        """Train the rows by the run's optimiser on the clients' own data.

        `core.training.options.Options` lists the options.
        """

    def descend(self, rows: Tensor, **options: Any) -> "Descended":
        """The same for methods that need more than the rows: also returns their anchor, the personal top, and
        the sum of each client's step sizes."""

    def batches(
        self, *, epochs: Tensor | None = None, part: tuple[float, float] | None = None
    ) -> Iterator[tuple[Tensor, "Batch"]]:
        """For methods with steps of their own: the positions of clients still at work, and their batch."""

    def sgd(self, rows: Tensor) -> "Sgd":
        """Rows to be moved by `step(who, direction)`: the round's lr, and clip, weight decay and momentum."""

    def gradient(self, rows: Tensor, batch: "Batch") -> Tensor:
        """The gradient of each row's mean loss on its batch."""

    def losses(self, rows: Tensor, batch: "Batch") -> Tensor:
        """Each row's mean loss on its batch."""


@dataclass(frozen=True)
class Local:
    """The outcome of local training for a stack of clients."""

    upload: State  # all that the server will see
    personal: Tensor  # the models by which the clients are evaluated
    kept: State = field(default_factory=dict)


class Algorithm:
    """A federated method. Its defaults are FedAvg, so a method says only where it differs.

    An algorithm holds its constructor's arguments and nothing else: all state comes in and goes out as
    tensors. In every round the server sends `send(state)`; clients run `local`, which trains, and returns
    what they upload, what they keep and the personal models they are evaluated by; the server runs
    `aggregate`. A stack of clients is trained at once: tensors have one row per client, and the code reads as
    if there were one.

    FedProx, for example, pulls clients back to the model they were sent::

        @dataclass(frozen=True)
        class Prox(pagefl.Algorithm):
            mu: float = 0.01

            def local(self, clients):
                sent = clients.sent["model"]
                rows = clients.train(sent, mu=self.mu, anchor=sent)
                return pagefl.Local(upload={"model": rows}, personal=rows)

        pagefl.run(task="synthetic", algorithm=Prox(mu=0.1))
    """

    needs_body: ClassVar[bool] = False  # True: only for models with a body and a head
    # Groups of rows that are always equal, such as (("upload.model", "personal"),): each group is held in
    # memory once. None: nothing is declared, and what `local` uploads is found by trying it on one client.
    same_rows: ClassVar[tuple[tuple[str, ...], ...] | None] = None

    @property
    def needs_sgd(self) -> str:
        """Why no optimiser will do but sgd, whose step sizes are known beforehand; empty if any will."""
        return ""

    def server_state(self, row: Tensor) -> State:
        """The server's state before the first round. `model`, the shared model W, must be part of it."""
        return {"model": row}

    def client_state(self, row: Tensor, layout: Layout) -> State:
        """What one client keeps, before the first round."""
        return {}

    def upload_state(self, row: Tensor, layout: Layout) -> State:
        """What one client uploads: names, shapes and types. The values do not matter."""
        return {"model": row}

    def send(self, server: State) -> State:
        """What the server sends to every client."""
        return {"model": server["model"]}

    def adapt(self, clients: Clients) -> Tensor:
        """The shared model as it is fitted to these clients before it is evaluated on their data."""
        return clients.sent["model"]

    def local(self, clients: Clients) -> Local:
        """One round of the clients."""
        rows = clients.train(clients.sent["model"])
        return Local(upload={"model": rows}, personal=rows)

    def origin(self, sent: State, layout: Layout) -> State:
        """What a client would upload that has not trained, by name; zero where there is no entry.

        Norms and distances of uploads are measured from here, and so is what clipping and noise act on.
        """
        return {"model": sent["model"]}

    def candidates(self, sent: Tensor, upload: State) -> Tensor:
        """The models that uploads stand for, [n, columns].

        The server may evaluate them before it weighs them.
        """
        return upload.get("model", sent)

    def aggregate(self, server: State, uploads: "Uploaded", weights: Tensor, share: float) -> State:
        """The server's next state. `weights` sum to one over the uploads; `share` is their part of all.

        `uploads.sum(name, weights)` adds rows up where they lie. `uploads[name]` fetches all of them.
        """
        if not uploads:
            return server
        return {**server, "model": uploads.sum("model", weights)}
