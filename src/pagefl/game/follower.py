"""Follower: the server's turn of a round."""

from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import torch

from pagefl.agents.ddpg import Losses
from pagefl.core import rng
from pagefl.core.algorithm import State, bytes_of
from pagefl.core.arrays import Floats, Integers, finite
from pagefl.core.errors import UserError
from pagefl.core.server import ServerHalf

from .messages import NOBODY, SCORES, SIZE, Answer, Orders, Told
from .protocol import ServerPolicy, by_size, rewarded
from .rewards import DemandRatio, reward
from .sizes import capped
from .terms import Terms
from .uploads import Uploads

AGENT, KNOWN = "server_agent.", "known."
REMEMBERED = (SIZE, *SCORES)  # of what clients tell
SAMPLE = 100  # clients on whose data the shared model is evaluated in every judged round
UNKNOWN = (np.nan, np.nan)


class Timekeeper(Protocol):
    """Who takes part, and whose uploads count: a simulated `Clock`, or one that is read."""

    now: float  # seconds since the start

    def draw(self, round: int) -> Integers: ...

    def counted(self, round: int, answer: Answer) -> Answer: ...

    def state(self) -> State: ...

    def load(self, tensors: State) -> None: ...


class Round(NamedTuple):
    """One round, as it was played."""

    orders: Orders
    answer: Answer
    weights: Floats  # of answer.clients
    test: tuple[float, float]  # loss and accuracy of the new W on the half that only evaluates
    game: tuple[float, float]  # and on the half that states and rewards may use
    reward: float
    losses: Losses | None  # of the server's agent
    taught: Losses | None  # of the agent that clients share, where the server trains it
    upload_accuracy: Floats | None  # of answer.clients, where the policy asked for it
    bytes_up: int  # that clients sent, in time or too late


class Follower:
    """A server half, its policy, and what clients have told so far."""

    def __init__(
        self,
        half: ServerHalf,
        policy: ServerPolicy,
        terms: Terms,
        *,
        everybody: bool = True,
        clock: Timekeeper | None = None,
    ) -> None:
        """`everybody`: remember what each client told last. Otherwise only what was told in the last round,
        and the mean size of the first clients that were met: nothing grows with the federation. `clock`:
        where there is time."""
        self.half, self.policy, self.terms, self.everybody = half, policy, terms, everybody
        self.clock = clock
        self.role = "server_test" if terms.released else "game"  # the split of states and rewards
        self.known = Told(np.arange(half.clients) if everybody else NOBODY)
        self.first_mean_size = np.nan

    def introduction(self) -> Orders:
        """Nobody trains: clients evaluate the model that they are sent."""
        return self._orders(0, NOBODY, DemandRatio(), mean_size=1.0)._replace(sample=self.sample)

    def orders(self, round: int, demand: DemandRatio, judged: bool = True) -> Orders:
        clients = (
            self.half.participants(round, self.terms.participation)
            if self.clock is None
            else self.clock.draw(round)
        )
        orders = self._orders(round, clients, demand, self.mean_size)
        return orders._replace(judged=judged, sample=self.sample if judged else NOBODY)

    def farewell(self, round: int) -> Orders:
        """The model that this round ended with, for the personal step."""
        return self._orders(round, self.tuned, DemandRatio(), self.mean_size)

    @property
    def mean_size(self) -> float:
        """Of the clients' training data; 0 if it is a secret."""
        if self.terms.private:
            return 0.0
        if not self.everybody:
            return self.first_mean_size
        sizes = self.known[SIZE]
        return float(capped(sizes[~np.isnan(sizes)], self.terms.largest_size_share).mean())

    @property
    def tuned(self) -> Integers:
        """The clients that take the personal step."""
        return np.arange(self.half.clients) if self.everybody else self.sample

    def _orders(self, round: int, clients: Integers, demand: DemandRatio, mean_size: float) -> Orders:
        sent = {name: rows[0] for name, rows in self.half.sent.items()}
        return Orders(round, clients, sent, self.policy.sent, demand, mean_size)

    @cached_property
    def sample(self) -> Integers:
        return sample_of(self.half.clients, self.half.training.seed)

    def note(self, answer: Answer) -> None:
        """Remember what clients tell. Of those that did not train, what they do not tell stays as it was."""
        if not self.everybody:
            if np.isnan(self.first_mean_size):
                self.first_mean_size = float(np.nanmean(answer.told[SIZE]))
            self.known = answer.told
            return
        for name in REMEMBERED:
            values, told = self.known[name], answer.told[name]
            np.copyto(values, told, where=~np.isnan(told))

    def follow(self, orders: Orders, answer: Answer) -> Round:
        """Learn from what clients share, weigh their uploads, aggregate, and see what it was worth."""
        round = orders.round
        bytes_up = len(answer.clients) * self.half.source.size + bytes_of(answer.experience)
        if self.clock is not None:
            answer = self.clock.counted(round, answer)
        clients = answer.clients
        self.half.receive(clients, answer.uploads)
        taught = self.policy.update(round, answer.experience) if answer.experience else None
        sizes = capped(self.known.of(SIZE, clients), self.terms.largest_size_share)
        uploads = Uploads(self.half, round, clients, sizes, self.role, answer.told.of("seconds", clients))
        losses = self.policy.observe(round, clients, uploads)
        weights = self.policy.act(round, clients, uploads)
        if "p" in self.terms.freeze:
            weights = by_size(uploads)
        if self.terms.private:  # by what is expected: how many take part is a secret too
            weights = np.full(len(clients), 1 / (self.terms.participation * self.half.clients))
        if not np.isfinite(weights).all():
            raise UserError(f"round {round}: the weights that the server's policy chose are not finite")
        counted = weights > 0  # whoever has no weight is as absent

        def regard(name: str) -> Floats | None:
            found = self.policy.regard(round, clients, uploads, name)
            return None if found is None else found[counted]

        learned = "p" not in self.terms.freeze and not self.terms.private
        self.half.aggregate(round, clients[counted], weights[counted], regard if learned else None)
        self._check_shared(round)
        paid = self.terms.rewards or rewarded(self.policy)
        asked = {"server_test": orders.judged, "game": False}
        asked[self.role] |= paid
        scores = self.half.evaluate(round, *(role for role, wanted in asked.items() if wanted))
        loss = scores.get(self.role, UNKNOWN)[0]
        if self.terms.reward == "weighted-local":
            lost = answer.told.of("test_loss" if self.terms.released else "train_loss", clients)
            loss = float(weights @ lost)
        earned = float(reward(loss, self.terms.penalty)) if paid else np.nan
        if paid:
            self.policy.reward(round, earned * orders.demand.server)
        return Round(
            orders,
            answer,
            weights,
            scores.get("server_test", UNKNOWN) if orders.judged else UNKNOWN,
            scores.get("game", UNKNOWN),
            earned,
            losses,
            taught,
            uploads.known_accuracy,
            bytes_up,
        )

    def _check_shared(self, round: int) -> None:
        """A round later, it would be blamed on the clients."""
        for name, value in self.half.shared.items():
            if value.is_floating_point() and not bool(finite(value.reshape(1, -1))):
                algorithm = type(self.half.algorithm).__name__
                raise UserError(
                    f"round {round}: `aggregate` of {algorithm} made `{name}` not finite, from finite uploads"
                )

    def state(self) -> State:
        names = [name for name in REMEMBERED if self.everybody and not np.isnan(self.known[name]).all()]
        known = {KNOWN + name: torch.from_numpy(self.known[name]) for name in names}
        return {
            **self.half.state(),
            **{AGENT + name: value for name, value in self.policy.tensors.items()},
            **known,
            **({} if self.clock is None else self.clock.state()),
        }

    def load(self, tensors: State) -> None:
        self.half.load(tensors)
        self.policy.load(
            {name.removeprefix(AGENT): value for name, value in tensors.items() if name.startswith(AGENT)}
        )
        if self.clock is not None:
            self.clock.load(tensors)
        # a client that the checkpoint does not know keeps what it has told since
        for name in REMEMBERED:
            values = self.known[name]
            if (found := tensors.get(KNOWN + name)) is not None:
                np.copyto(values, found.numpy(), where=~np.isnan(tensors[KNOWN + SIZE].numpy()))


def sample_of(clients: int, seed: int) -> Integers:
    """The clients that are evaluated in every judged round: some of many, all of few."""
    return np.sort(rng.stream(seed, "judged").choice(clients, min(SAMPLE, clients), replace=False))
