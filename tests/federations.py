"""Small federations that tests share: unequal clients, made on the spot."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from pagefl import Algorithm, FederatedData, Task
from pagefl.core.algorithm import State
from pagefl.core.block import Block
from pagefl.core.clients import ClientHalf
from pagefl.core.examples import Splits
from pagefl.core.holdings import Resident
from pagefl.core.jobs import Trained
from pagefl.core.server import ServerHalf
from pagefl.core.training.linear import LinearModel
from pagefl.core.training.model import Model, RowModel, StackedModel
from pagefl.core.training.plan.model import PlanModel
from pagefl.core.training.stack import Training
from pagefl.runtime.settings import Settings
from pagefl.runtime.simulation import simulate

FEATURES, CLASSES = 6, 4


def client(size: int, seed: int, classes: int = CLASSES) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, FEATURES, generator=generator)
    truth = torch.randn(FEATURES, CLASSES, generator=torch.Generator().manual_seed(99))
    return x, (x @ truth).argmax(1) % classes


def data(
    sizes: tuple[int, ...] = (3, 17, 40, 25, 9), single_class: int | None = 4, flip: bool = False
) -> FederatedData:
    """A client with fewer examples than a batch, one with a single class.

    `flip`: noise in place of every test label.
    """

    def labels(pair: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = pair
        return x, torch.randint(
            0, CLASSES, y.shape, generator=torch.Generator().manual_seed(7)
        ) if flip else y

    train = [client(size, i, 1 if i == single_class else CLASSES) for i, size in enumerate(sizes)]
    test = [labels(client(8, 100 + i)) for i in range(len(sizes))]
    built = FederatedData(train, test, client(60, 200))
    if flip:
        built.server_test.y.copy_(labels((built.server_test.x, built.server_test.y))[1])
    return built


def linear() -> nn.Module:
    return nn.Linear(FEATURES, CLASSES)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES))


def net() -> nn.Module:
    """A module that can be planned."""
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, CLASSES))


def planned(module: nn.Module) -> PlanModel:
    """The plan of a module that takes rows of features, or images."""
    images = any(isinstance(part, nn.Conv2d) for part in module.modules())
    return PlanModel(
        module, torch.zeros(2, 3, 32, 32, dtype=torch.uint8) if images else torch.ones(2, FEATURES)
    )


# every way in which a model is trained, with a module that fits it
PATHS = [
    (LinearModel, linear),
    (StackedModel, linear),
    (RowModel, linear),
    (StackedModel, mlp),
    (RowModel, mlp),
    (planned, net),
    (RowModel, net),
]
MODULES: dict[str, Callable[[], nn.Module]] = {"linear": linear, "mlp": mlp, "net": net}
SETTINGS = {
    "rounds": 3,
    "lr": 0.3,
    "epochs": 2,
    "batch_size": 4,
    "weight_decay": 0.01,
    "clip": 0.8,
    "workers": 1,
}

# Of algorithms whose defaults train for long: the same rules, sooner done.
QUICK = {
    "ditto": {"personal_epochs": 3},
    "fedala": {"tolerance": 10.0},
    "fedbabu": {"tune_epochs": 2},
    "fedrep": {"head_epochs": 2},
    "pfedme": {"inner_steps": 2},
}


def task(module: str = "linear", *, personal: str = "never", **options: object) -> Task:
    """`personal`: when the personal step is taken. It is most of a short run's time."""
    settings = {**SETTINGS, "personal": {"when": personal}}
    return Task(f"small-{module}", MODULES[module], data(**options), settings)  # type: ignore[arg-type]


class Federation:
    """Both halves, driven by hand: rounds without a game."""

    def __init__(self, clients: ClientHalf, server: ServerHalf) -> None:
        self.clients, self.server = clients, server

    @classmethod
    def of_task(cls, of: Task, algorithm: Algorithm, settings: Settings) -> "Federation":
        simulation = simulate(of, algorithm, settings)
        return cls(simulation.clients, simulation.server)

    @classmethod
    def of_model(
        cls,
        model: Model,
        algorithm: Algorithm,
        splits: Splits,
        training: Training,
        *,
        row: Tensor,
        chunk: int | None = None,
    ) -> "Federation":
        held = Resident(splits.of_clients, model, row)
        block = Block(model, algorithm, held, training, row=row)
        clients = ClientHalf(
            block, algorithm, training, chunk=chunk or model.chunk, cuts=np.empty(0, np.int64)
        )
        uploads = block.storage.uploads
        server = ServerHalf(
            model, algorithm, splits.of_server, training, row=row, clients=clients.size, uploads=uploads
        )
        return cls(clients, server)

    def train(self, round: int, ids: np.ndarray, lr: np.ndarray, epochs: np.ndarray) -> Trained:
        """Hand what the server sends to the clients, and train these."""
        self.clients.receive({name: rows[0] for name, rows in self.server.sent.items()})
        return self.clients.train(round, ids, lr, epochs)

    def aggregate(self, ids: np.ndarray, weights: np.ndarray) -> None:
        self.server.aggregate(1, ids, weights)

    @property
    def shared(self) -> State:
        """The server's state."""
        return self.server.shared

    @property
    def uploads(self) -> State:
        return self.server.uploads

    @property
    def personal(self) -> Tensor:
        return self.clients.block.storage.personal

    @property
    def kept(self) -> State:
        return self.clients.block.storage.kept

    def state(self) -> State:
        return {**self.server.state(), **self.clients.state()}


def trained_part(state: State) -> State:
    """Without the scores on test data that a server remembers: everything that no test label may reach."""
    return {
        name: value for name, value in state.items() if not name.startswith(("known.test_", "known.before_"))
    }
