"""What players are: a policy for the clients, a policy for the server. The defaults play the task's settings.

In every round the clients lead and the server follows:

    clients   receive what the server sends   observe   act: lr, epochs   (train)       reward   experience
    server    update by the experience        observe   act: weights      (aggregate)   reward

`act` only chooses. `observe` learns: it is called when the outcome of the last move is in sight. A policy
whose transitions are complete with their reward may learn in `reward`.
"""

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from pagefl.agents.ddpg import Losses
from pagefl.core.algorithm import State
from pagefl.core.arrays import Flags, Floats, Integers
from pagefl.core.evaluate import Scores
from pagefl.devices.costs import Costs, Prices
from pagefl.devices.fleet import Fleet

from .account import Account
from .rewards import DemandRatio

if TYPE_CHECKING:
    from .uploads import Uploads


class Setup(NamedTuple):
    """What players are told before the first round."""

    clients: int  # that the policy plays; clients are numbered from 0
    rounds: int
    seed: int
    lr: float  # the task's own
    epochs: int
    released: bool = False  # the protocol of the published programs
    # the federation's number of the policy's first client: on a node that holds one of many, its own
    first: int = 0
    freeze: frozenset[str] = frozenset()  # factors that the settings hold fixed, whatever is played
    devices: Fleet | None = None  # of the clients, where time is simulated
    deadline: float | None = None  # seconds of a round, where the settings have one

    def passed(self, round: int) -> float:
        """How much of the run is over: 0 in the first round, 1 in the last."""
        return (round - 1) / max(1, self.rounds - 1)


class Moves(NamedTuple):
    lr: Floats
    epochs: Integers


class Observation:
    """The shared model on the clients' own data, before they move.

    It is evaluated only if a policy asks for it.
    """

    def __init__(
        self,
        evaluate: Callable[[], Scores],
        demand: DemandRatio = DemandRatio(),  # noqa: B008 (frozen)
        prices: Prices | None = None,
    ) -> None:
        """`prices`: what moves cost these clients, where time is simulated."""
        self._evaluate, self.demand, self.prices = evaluate, demand, prices

    @cached_property
    def scores(self) -> Scores:
        return self._evaluate()

    @property
    def accuracy(self) -> Floats:
        return self.scores.accuracy

    @property
    def loss(self) -> Floats:
        return self.scores.loss

    @property
    def was_used(self) -> bool:
        return "scores" in vars(self)

    def of(self, which: Integers) -> "Observation":
        prices = None if self.prices is None else self.prices.of(which)
        return Observation(lambda: Scores(self.loss[which], self.accuracy[which]), self.demand, prices)


class Outcome(NamedTuple):
    """What came of a move: the client's own model on its own data, after training."""

    reward: Floats  # 1 / loss, times the demand ratio
    accuracy: Floats
    loss: Floats
    upload_loss: Floats  # of what the client uploads; for most algorithms that is its own model
    added: Floats  # by how much what the algorithm adds to the loss of the upload has changed by training
    shrunk: Floats  # by which factor of its lr a client trained in the end; below 1: it trained again
    lead: Floats  # by how much the objective was lower with the rival move
    costs: Costs | None = None  # of the round, as it was played, where time is simulated

    def of(self, which: Flags | Integers) -> "Outcome":
        """Of some of these clients."""
        costs = None if self.costs is None else self.costs.of(which)
        return Outcome._make([*(values[which] for values in self[:-1]), costs])


class ClientPolicy:
    """Chooses lr and epochs for a block of clients.

    `clients` are the positions of those that take part in the round.
    """

    uses_upload_loss: bool = False  # True: evaluate uploads too, where they are not the personal models
    looks_at_others: ClassVar[bool] = False  # True: a client's move depends on who else takes part

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.frozen = False

    @property
    def received(self) -> State:
        """What the server's policy sends: these tensors are overwritten by it in every round."""
        return {}

    def receive(self, policy: State) -> None:
        for name, value in self.received.items():
            value.copy_(policy[name])

    def observe(self, round: int, clients: Integers, seen: Observation) -> Losses | None:
        """Learn from what the last move led to."""
        return None

    def act(self, round: int, clients: Integers, seen: Observation) -> Moves:
        return Moves(np.full(len(clients), self.setup.lr), np.full(len(clients), self.setup.epochs))

    def limits(self, round: int, clients: Integers, seen: Observation) -> Floats | None:
        """The largest objective that each upload may have: above it, a client trains again with a tenth of
        its lr, as long as that lowers it. None: any."""
        return None

    def rivals(self, round: int, clients: Integers, seen: Observation) -> Moves | None:
        """Second moves: each client trains with both, and goes on with the one that leaves it the lower
        objective. lr 0: it tries no second one. None: nobody does."""
        return None

    @property
    def personal_lr(self) -> float:
        """The lr around which the personal step is searched."""
        return self.setup.lr

    def reward(self, round: int, clients: Integers, outcome: Outcome) -> None:
        """What the moves of these clients were worth."""

    def affords(self, round: int, clients: Integers, seen: Observation) -> Floats | None:
        """The most epochs that each can play within its budget. None: any."""
        return None

    def account(self) -> Account | None:
        """The prices and costs of the clients that acted last. None: they have no budget."""
        return None

    def experience(self, clients: Integers) -> State:
        """What these clients send to the server's policy, a row each."""
        return {}

    @property
    def tensors(self) -> State:
        """Everything that a round changes, for checkpoints."""
        return {}

    def load(self, tensors: State) -> None:
        for name, value in self.tensors.items():
            value.copy_(tensors[name])

    def freeze(self) -> None:
        """From now on play the strategy as it is: do not explore, do not learn."""
        self.frozen = True


class ServerPolicy:
    """Chooses the weights of the uploads."""

    # True: it needs the models that uploads stand for, so these must be known
    looks_at_uploads: ClassVar[bool] = False

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.frozen = False

    @property
    def sent(self) -> State:
        """What is sent to the clients' policies in every round."""
        return {}

    def update(self, round: int, experience: State) -> Losses | None:
        """Learn from what clients sent, a row each."""
        return None

    def observe(self, round: int, clients: Integers, uploads: "Uploads") -> Losses | None:
        """Learn from what the last move led to."""
        return None

    def act(self, round: int, clients: Integers, uploads: "Uploads") -> Floats:
        """The weights of these clients' uploads. They sum to one."""
        return by_size(uploads)

    def regard(self, round: int, clients: Integers, uploads: "Uploads", name: str) -> Floats | None:
        """How far each upload counts, 0 to 1, where an algorithm takes the plain mean of one array: for
        states that the server keeps beside the model. None: fully."""
        return None

    @property
    def personal_lr(self) -> float:
        """The same as the clients' policy has."""
        return self.setup.lr

    def reward(self, round: int, reward: float) -> None:
        """What the weights were worth: one over the new model's loss, times the demand ratio."""

    def affords(self, weights: Floats, seconds: Floats) -> bool:
        """Whether such weights of uploads that took so long are within its budget."""
        return True

    def account(self) -> Account | None:
        """Its price and cost of the last round. None: it has no budget."""
        return None

    @property
    def tensors(self) -> State:
        return {}

    def load(self, tensors: State) -> None:
        for name, value in self.tensors.items():
            value.copy_(tensors[name])

    def freeze(self) -> None:
        self.frozen = True


def rewarded(policy: ClientPolicy | ServerPolicy) -> bool:
    """Whether a policy does anything with its rewards; otherwise they are not computed."""
    kind = type(policy)
    return kind.reward not in (ClientPolicy.reward, ServerPolicy.reward)


def by_size(uploads: "Uploads") -> Floats:
    """Weights by the clients' numbers of examples."""
    return np.asarray(uploads.sizes / uploads.sizes.sum())


class Players:
    """Who chooses lr, epochs and weights. The defaults: the task's lr and epochs, and weights by data size.

    A kind of players is a class whose constructor's arguments are its settings. This one halves the learning
    rate of clients on whose data the shared model is already good::

        @dataclass(frozen=True)
        class Careful(pagefl.Players):
            good: float = 0.9

            def client_policy(self, setup):
                return CarefulClients(setup, self.good)

        class CarefulClients(pagefl.ClientPolicy):
            def __init__(self, setup, good):
                super().__init__(setup)
                self.good = good

            def act(self, round, clients, seen):
                lr, epochs = super().act(round, clients, seen)
                return pagefl.Moves(np.where(seen.accuracy > self.good, lr / 2, lr), epochs)

        pagefl.run(task="synthetic", players=Careful(good=0.8))
    """

    uses_demand: ClassVar[bool] = False  # True: the demand ratio changes how they play
    agent_per_client: ClassVar[bool] = False  # True: what they learn grows with the number of clients

    def client_policy(self, setup: Setup) -> ClientPolicy:
        return ClientPolicy(setup)

    def server_policy(self, setup: Setup) -> ServerPolicy:
        return ServerPolicy(setup)
