"""FedEx: clients draw their lr and epochs from one distribution, which learns by their losses.

Khodak, Tu, Li, Li, Balcan, Smith and Talwalkar: Federated Hyperparameter Tuning: Challenges, Baselines, and
Connections to Weight-Sharing, NeurIPS 2021 (algorithm 2). Where the paper leaves a choice, it is made as in
the authors' programs: steps by the "aggressive" schedule, a baseline of zero in the first round, and no more
learning once the entropy is below 1e-4.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
import torch

from pagefl.agents.ddpg import Losses
from pagefl.core import rng
from pagefl.core.algorithm import State
from pagefl.core.arrays import Floats, Integers
from pagefl.game.protocol import ClientPolicy, Moves, Observation, Outcome, Players, ServerPolicy, Setup

from .bounds import Count, Positive, Share

FACTORS = np.array([0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0])  # of the run's lr
SETTLED = 1e-4  # an entropy below which the distribution is not changed any more
LARGEST = 10.0  # losses are cut off here: one client that diverges must not hide the others' differences
LEAST = 1e-200  # of a probability that something is divided by


@dataclass(frozen=True)
class FedEx(Players):
    """Clients draw lr and epochs from a distribution that they share, and that learns by their losses.

    The configurations: the run's lr times 0.03, 0.1, 0.3, 1, 3, 10 and 30, within the range; 1 epoch, a
    quarter of the most, and the most. Weights by data size.

    lr_min: smallest learning rate that can be chosen
    lr_max: largest learning rate that can be chosen
    epochs_max: largest number of local epochs that can be chosen
    discount: of earlier rounds in the mean loss that losses are compared with; 0 counts the last round alone
    """

    lr_min: Positive = 1e-3
    lr_max: Positive = 0.1
    epochs_max: Count = 20
    discount: Share = 0.5

    def client_policy(self, setup: Setup) -> ClientPolicy:
        return FedExClients(setup, self.configurations(setup))

    def server_policy(self, setup: Setup) -> ServerPolicy:
        return FedExServer(setup, len(self.configurations(setup)), self.discount)

    def configurations(self, setup: Setup) -> list[tuple[float, int]]:
        within = np.clip(setup.lr * FACTORS, self.lr_min, self.lr_max).tolist()
        lr = sorted({float(f"{value:.12g}") for value in within})  # equal but for rounding: once
        epochs = sorted({1, max(1, self.epochs_max // 4), self.epochs_max})
        return list(product(lr, epochs))


class FedExClients(ClientPolicy):
    """A client draws a configuration, and tells its number and its loss after training."""

    uses_upload_loss = True

    def __init__(self, setup: Setup, configurations: list[tuple[float, int]]) -> None:
        super().__init__(setup)
        self.lr, self.epochs = map(np.array, zip(*configurations, strict=True))
        self.probabilities = torch.full([len(configurations)], 1 / len(configurations))
        self.drawn = torch.zeros(setup.clients, 2)

    @property
    def received(self) -> State:
        return {"probabilities": self.probabilities}

    def act(self, round: int, clients: Integers, seen: Observation) -> Moves:
        index = self._most_likely(clients) if self.frozen else self._draw(round, clients)
        self.drawn[torch.from_numpy(clients), 0] = torch.from_numpy(1.0 + index).float()
        return Moves(self.lr[index], self.epochs[index])

    def reward(self, round: int, clients: Integers, outcome: Outcome) -> None:
        loss = np.fmin(outcome.upload_loss, LARGEST)
        self.drawn[torch.from_numpy(clients), 1] = torch.from_numpy(loss).float()

    def experience(self, clients: Integers) -> State:
        return {"drawn": self.drawn[torch.from_numpy(clients)]}

    def _most_likely(self, clients: Integers) -> Integers:
        return np.full(len(clients), int(self.probabilities.argmax()))

    def _draw(self, round: int, clients: Integers) -> Integers:
        keys = rng.keys(self.setup.seed, "drawn configuration", round, (self.setup.first + clients).tolist())
        upto = np.cumsum(self.probabilities.double().numpy())
        return np.searchsorted(upto / upto[-1], rng.uniforms(keys, 1)[:, 0], side="right")


class FedExServer(ServerPolicy):
    """Exponentiated gradient steps of the distribution over configurations."""

    def __init__(self, setup: Setup, count: int, discount: float) -> None:
        super().__init__(setup)
        self.discount = discount
        self.log_probabilities = torch.full([count], -np.log(count), dtype=torch.float64)
        self.baseline = torch.zeros(1, dtype=torch.float64)  # the discounted mean of earlier rounds' losses
        self.updates = torch.zeros(1, dtype=torch.long)

    @property
    def probabilities(self) -> Floats:
        return np.asarray(np.exp(self.log_probabilities.numpy()))

    @property
    def settled(self) -> bool:
        return float(-self.probabilities @ self.log_probabilities.numpy()) < SETTLED

    @property
    def sent(self) -> State:
        chances = torch.from_numpy(self.probabilities)
        if self.settled:
            chances = torch.zeros_like(chances).index_fill_(0, chances.argmax(), 1.0)
        return {"probabilities": chances.float()}

    def update(self, round: int, experience: State) -> Losses | None:
        drawn = self._sound(experience["drawn"].double().numpy())
        if self.frozen or self.settled or not len(drawn):
            return None
        index, loss = drawn[:, 0].astype(np.int64) - 1, drawn[:, 1]
        count = len(self.log_probabilities)
        # The unbiased estimate of the gradient: what was drawn rarely counts for more.
        better = np.bincount(index, self.baseline.item() - loss, minlength=count) / len(loss)
        better /= np.maximum(self.probabilities, LEAST)
        if largest := np.abs(better).max():
            self.log_probabilities += torch.from_numpy(np.sqrt(2 * np.log(count)) / largest * better)
            self.log_probabilities -= torch.logsumexp(self.log_probabilities, dim=0)
        self.updates += 1
        rounds = (1 - self.discount ** self.updates.item()) / (1 - self.discount)
        self.baseline += (loss.mean() - self.baseline) / rounds
        return None

    def _sound(self, drawn: Floats) -> Floats:
        """The rows that a client can have sent: the number of a configuration, and a loss."""
        number, loss = drawn.T
        known = np.isin(number, np.arange(1, len(self.log_probabilities) + 1))
        return np.asarray(drawn[known & (loss >= 0) & (loss <= LARGEST)])

    @property
    def tensors(self) -> State:
        return {
            "log_probabilities": self.log_probabilities,
            "baseline": self.baseline,
            "updates": self.updates,
        }
