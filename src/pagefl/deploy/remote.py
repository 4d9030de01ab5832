"""RemoteClients: clients on nodes. Their replies are used only after they have been checked."""

import math
from collections.abc import Set
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch

from pagefl.core.algorithm import State
from pagefl.core.arrays import Integers
from pagefl.core.errors import UserError
from pagefl.core.personal import Step, Trials, Tuned
from pagefl.game.messages import SIZE, Answer, Orders, Told
from pagefl.game.sizes import capped
from pagefl.runtime.halves import Say
from pagefl.runtime.settings import DeploySettings

from .norms import UsualNorm
from .told import HOLDOUT, NOT_JUDGED, UNTOLD_IN_A_ROUND, implausible

T = TypeVar("T")
NOBODY, NORMS = np.empty(0, np.int64), "remote.norms."


class Reply(NamedTuple):
    """A node's reply, whose form has been checked."""

    arrays: State  # upload and experience
    told: dict[str, float]


class Replies(NamedTuple):
    good: dict[int, Reply]  # by client number
    refused: dict[int, str]  # by client number: the reason
    missing: int  # clients that did not answer in time
    late: int  # replies to an earlier round, after its end


class Exchanged(NamedTuple, Generic[T]):
    """What came back of one message to each of some clients."""

    good: dict[int, T]  # by client number: what was read of its reply
    refused: dict[int, str]  # by client number: the reason
    late: int  # replies to an earlier message


class Nodes(Protocol):
    """The nodes, by the numbers of their clients."""

    def meet(self, orders: Orders) -> dict[int, dict[str, float]]:
        """What nodes report that are new in this run, or have come back."""

    def ask(self, orders: Orders) -> Replies: ...

    def ask_for_step(self, orders: Orders, step: Step | None) -> Replies: ...


class RemoteClients:
    """The clients of a game (see `game.Clients`), reached through a network."""

    def __init__(
        self,
        nodes: Nodes,
        clients: int,
        uploads: Set[str],
        experience: Set[str],
        settings: DeploySettings,
        say: Say,
        *,
        compares: bool = True,
        largest_size_share: float = 1.0,
    ) -> None:
        """`uploads`, `experience`: the names of the arrays that a node sends. `compares`: whether one upload
        may be refused because of the others; with privacy, clipping bounds it instead. `largest_size_share`:
        of all examples, that one client may claim."""
        self.nodes, self.clients, self.settings, self.say = nodes, clients, settings, say
        self.uploads, self.experience = uploads, experience
        self.compares, self.largest_size_share = compares, largest_size_share
        self.usual = {"experience": UsualNorm(), "upload": UsualNorm()}
        self.sizes: dict[int, float] = {}  # as they were told

    def meet(self, orders: Orders) -> Answer | None:
        found = self.nodes.meet(orders)
        if not found:
            return None
        self._note_sizes(found)
        return Answer(NOBODY, NOBODY, {}, {}, self._table(found))

    def answer(self, orders: Orders) -> Answer:
        replies, asked = self.nodes.ask(orders), len(orders.clients)
        if len(replies.good) < self.settings.fewest * asked:
            raise UserError(
                f"round {orders.round}: {len(replies.good)} of {asked} clients answered, and deploy.fewest = "
                f"{self.settings.fewest}; start the nodes that are missing and give the same command "
                "again: it goes on from "
                "its checkpoint"
            )
        refused = {**replies.refused, **self._refused(replies.good, orders.judged)}
        for number, reason in sorted(refused.items()):
            self.say(f"round {orders.round}: client {number} is quarantined: {reason}")
        good = {number: reply for number, reply in sorted(replies.good.items()) if number not in refused}

        def rows(names: Set[str]) -> State:
            return {
                name: torch.stack([reply.arrays[name] for reply in good.values()]) for name in names if good
            }

        told = self._table({number: reply.told for number, reply in good.items()})
        self._note_sizes({number: reply.told for number, reply in good.items()})
        absent = {"missing": replies.missing, "late": replies.late}
        return Answer(
            _array(good),
            _array(refused),
            rows(self.uploads),
            rows(self.experience),
            told,
            _gradients(good),
            absent,
        )

    def try_steps(self, orders: Orders) -> Trials:
        good = self._of_step(orders, None)
        tried = [name for name in HOLDOUT if any(name in reply.told for reply in good.values())]
        losses = np.full((self.clients, len(tried)), np.nan)
        for number, reply in good.items():
            losses[number] = [reply.told[name] for name in tried]
        return Trials(losses, _gradients(good))

    def take_step(self, orders: Orders, step: Step) -> Tuned:
        good = self._of_step(orders, step)
        accuracy = np.full(self.clients, np.nan)
        for number, reply in good.items():
            accuracy[number] = reply.told.get("personal_accuracy", np.nan)
        return Tuned(accuracy, _gradients(good))

    def _of_step(self, orders: Orders, step: Step | None) -> dict[int, Reply]:
        """The replies about the personal step that can be used."""
        replies = self.nodes.ask_for_step(orders, step)
        refused = dict(replies.refused)
        for number, reply in replies.good.items():
            if reason := implausible(reply.told, set(HOLDOUT)):
                refused[number] = reason
        for number, reason in sorted(refused.items()):
            self.say(f"round {orders.round}: client {number} is left out of the personal step: {reason}")
        return {number: reply for number, reply in sorted(replies.good.items()) if number not in refused}

    def state(self) -> State:
        """What norms were usual. Clients keep their own state on their nodes."""
        return {NORMS + what: usual.tensor for what, usual in self.usual.items()}

    def load(self, tensors: State) -> None:
        for what, usual in self.usual.items():
            if (found := tensors.get(NORMS + what)) is not None:
                usual.load(found)

    def _note_sizes(self, told: dict[int, dict[str, float]]) -> None:
        """A client that tells a size which counts for less is named, once for each size that it tells."""
        before = dict(self.sizes)
        self.sizes |= {number: values[SIZE] for number, values in told.items()}
        known = sorted(self.sizes)
        counted = capped(np.array([self.sizes[number] for number in known]), self.largest_size_share)
        for number, size in zip(known, counted, strict=True):
            if size < self.sizes[number] != before.get(number):
                self.say(
                    f"client {number} tells a size of {self.sizes[number]:g}, which counts as {size:g}: "
                    f"defence.largest_size_share = {self.largest_size_share}"
                )

    def _refused(self, replies: dict[int, Reply], judged: bool) -> dict[int, str]:
        """The clients whose reply is refused, and why.

        Uploads must be finite, and not much larger than those of the others. One upload must not dominate the
        model, nor one transition the policy.
        """
        untold = UNTOLD_IN_A_ROUND if judged else UNTOLD_IN_A_ROUND | NOT_JUDGED
        refused = {
            number: reason for number, reply in replies.items() if (reason := implausible(reply.told, untold))
        }
        for what, names in (("experience", self.experience), ("upload", self.uploads)):
            norms = {number: _norm(reply.arrays, names) for number, reply in replies.items()}
            usual = self.usual[what].of(norms.values())
            for number, norm in norms.items():
                if not np.isfinite(norm):
                    refused[number] = f"its {what} is not finite"
                elif self.compares and usual and norm > self.settings.largest_norm * usual:
                    refused[number] = f"its {what}'s norm is {norm:.3g}, {norm / usual:.0f} times the median"
            self.usual[what].note([norm for number, norm in norms.items() if number not in refused])
        return refused

    def _table(self, told: dict[int, dict[str, float]]) -> Told:
        found = Told(np.arange(self.clients))
        for number, values in told.items():
            for name in found.keys() & values.keys():
                found[name][number] = values[name]
        return found


def _array(numbers: dict[int, object] | dict[int, str] | dict[int, Reply]) -> Integers:
    return np.array(sorted(numbers), np.int64)


def _gradients(replies: dict[int, Reply]) -> float:
    """Gradient evaluations of all that replied; NaN if they do not tell."""
    return sum(reply.told.get("gradients", math.nan) for reply in replies.values())


def _norm(arrays: State, names: Set[str]) -> float:
    return math.sqrt(sum(float(arrays[name].double().square().sum()) for name in names))
