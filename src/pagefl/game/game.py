"""Game: one federation played round after round. Clients lead, the server follows."""

from typing import Protocol

from pagefl.core import personal
from pagefl.core.algorithm import State
from pagefl.core.errors import UserError
from pagefl.core.personal import Step, Trials, Tuned

from .follower import Follower, Round
from .messages import Answer, Orders
from .rewards import DemandRatio


class Clients(Protocol):
    """The clients, wherever they are: `Leaders` in this process, or nodes behind a network."""

    def meet(self, orders: Orders) -> Answer | None:
        """What those tell that are new; None if nobody is."""

    def answer(self, orders: Orders) -> Answer:
        """One round of those that are ordered to train."""

    def try_steps(self, orders: Orders) -> Trials:
        """Every choice of a personal step from the model that is sent, on the clients' hold-outs."""

    def take_step(self, orders: Orders, step: Step) -> Tuned:
        """The personal step that was chosen, on all training data."""

    def state(self) -> State:
        """What of theirs is kept here, for checkpoints."""

    def load(self, tensors: State) -> None: ...


class NobodyLeft(UserError):
    """Every client of a round was quarantined: the round did not happen."""


class Game:
    def __init__(self, follower: Follower, clients: Clients) -> None:
        self.follower, self.clients = follower, clients

    def meet(self) -> None:
        """Clients that are new tell their sizes, and how the model does on their data before they train."""
        answer = self.clients.meet(self.follower.introduction())
        if answer is not None:
            self.follower.note(answer)

    def play(self, round: int, demand: DemandRatio, judged: bool = True) -> Round:
        """One round: the server orders, clients train, the server weighs and aggregates what they upload."""
        self.meet()
        orders = self.follower.orders(round, demand, judged)
        answer = self.clients.answer(orders)
        self.check(round, answer)
        self.follower.note(answer)
        return self.follower.follow(orders, answer)

    def personal_step(self, round: int) -> tuple[Step, Tuned]:
        """One step for all clients, chosen on their hold-outs, then taken. Training is not affected by it."""
        orders = self.follower.farewell(round)
        trials = self.clients.try_steps(orders)
        policy = self.follower.policy
        step = personal.choose(trials.losses, policy.personal_lr, policy.setup.epochs)
        tuned = self.clients.take_step(orders, step)
        return step, tuned._replace(gradients=trials.gradients + tuned.gradients)

    def check(self, round: int, answer: Answer) -> None:
        """Whether a round can go on without those that were quarantined."""
        bad, left, terms = answer.quarantined.tolist(), len(answer.clients), self.follower.terms
        # With privacy, whether a run goes on must not depend on one client: its upload counts as zero.
        if not bad or terms.private or (left and terms.on_bad_upload == "quarantine"):
            return
        names = ", ".join(map(str, bad[:5])) + ", …" * (len(bad) > 5)
        who = f"client {names}" if len(bad) == 1 else f"{len(bad)} clients ({names})"
        sentence = f"round {round}: {who} uploaded values that are not finite; a smaller lr may help"
        raise UserError(sentence) if left else NobodyLeft(sentence)

    def state(self) -> State:
        return {**self.follower.state(), **self.clients.state()}

    def load(self, tensors: State) -> None:
        self.follower.load(tensors)
        self.clients.load(tensors)
