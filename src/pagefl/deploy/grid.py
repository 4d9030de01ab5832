"""Nodes behind Flower's Grid: one message to each, sorted replies, deadlines."""

from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic, sleep
from typing import TypeVar

import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode

from pagefl.core.errors import UserError
from pagefl.core.personal import Step
from pagefl.experiments.spec import RunSpec
from pagefl.game.messages import Orders
from pagefl.runtime.halves import Say

from . import wire
from .absences import Absences
from .introductions import Introductions, Network, pull
from .node import told_of_step
from .remote import Exchanged, Replies, Reply

T = TypeVar("T")
POLL_SECONDS = 1.0
# The SuperLink's answer for a node that has died, after a minute. Such a node is missing, not quarantined.
GONE = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)


class GridNodes:
    """The nodes of a run, reached through Flower's Grid.

    The sender of a reply is known by the message that it answers. What a reply says about its sender is not
    trusted.
    """

    def __init__(
        self,
        network: Network,
        spec: RunSpec,
        due: dict[str, torch.Size],
        told: set[str],
        run: str,
        say: Say,
        keys: Mapping[bytes, int] | None = None,
    ) -> None:
        """`due`: the uploads that are expected, by name and shape. `told`: the numbers that are. `keys`: the
        clients' numbers by their public keys; None: nodes are believed."""
        self.network, self.spec, self.due, self.told, self.run, self.say = network, spec, due, told, run, say
        self.clients = spec.task["clients"]
        self.met = Introductions(network, self.clients, told, keys, run, say)
        self.absences = Absences()
        self.overdue: dict[str, int] = {}  # messages of earlier rounds that are not answered yet: to whom
        self.begun = False

    def meet(self, orders: Orders) -> dict[int, dict[str, float]]:
        """Meet new nodes.

        At the start this waits for all clients. After `deploy.patience` seconds it continues if enough have
        come. Later it does not wait.
        """
        end = monotonic() + self.spec.deploy.patience
        told = self.met.go_on(orders)
        if self.begun:
            for number in told:  # it has come back
                self.absences.heard(number)
            return told
        while len(self.met.numbers) < self.clients and monotonic() < end:
            sleep(POLL_SECONDS)
            told |= self.met.go_on(orders)
        here = len(self.met.numbers)
        if here < self.spec.deploy.fewest * self.clients:
            raise UserError(
                f"{here} of {self.clients} clients came within deploy.patience = "
                f"{self.spec.deploy.patience} "
                "seconds; start the nodes that are missing and give the same command again"
            )
        self.begun = True
        return told

    def ask(self, orders: Orders) -> Replies:
        """One round of the clients that are ordered to train."""
        return self._ask(orders, MessageType.TRAIN, self.question(orders), self.reply)

    def ask_for_step(self, orders: Orders, step: Step | None) -> Replies:
        """The personal step, or a trial of all of them."""
        told = told_of_step(self.spec, step)
        read = partial(self._read, due={}, told=told)
        return self._ask(orders, MessageType.EVALUATE, wire.pack_orders(orders, self.run, step), read)

    def _ask(
        self, orders: Orders, kind: str, content: RecordDict, read: Callable[[RecordDict], Reply]
    ) -> Replies:
        clients = orders.clients.tolist()
        found = self.exchange(orders.round, kind, dict.fromkeys(clients, content), read)
        missing = len(clients) - len(found.good) - len(found.refused)
        return Replies(found.good, found.refused, missing, found.late)

    def exchange(
        self, round: int, kind: str, contents: Mapping[int, RecordDict], read: Callable[[RecordDict], T]
    ) -> Exchanged[T]:
        """One message to each of these clients, as far as they are here. `read` may refuse a reply."""
        late = self._count_late()
        here = {
            number: node
            for node, number in self.met.numbers.items()
            if number in contents and not self.absences.left_out(number, round)
        }
        asked = sorted(here)
        messages = [
            Message(contents[number], dst_node_id=here[number], message_type=kind, group_id=str(round))
            for number in asked
        ]
        waiting = dict(zip(self.network.push_messages(messages), asked, strict=True))
        found: dict[int, T] = {}
        refused: dict[int, str] = {}
        end = monotonic() + self.spec.deploy.deadline
        while waiting and monotonic() < end:
            for name, reply in pull(self.network, waiting):
                number = waiting.pop(name)
                if _gone(reply):
                    continue
                self.absences.heard(number)
                try:
                    content = wire.content(reply)
                    self._check_question(content, round)
                    found[number] = read(content)
                except wire.Refused as reason:
                    refused[number] = str(reason)
            sleep(POLL_SECONDS if waiting else 0)
        self.overdue |= waiting
        for number in sorted(waiting.values()):
            if again := self.absences.note(number, round):
                self.say(
                    f"round {round}: client {number} does not answer; it is asked again in round {again}"
                )
        return Exchanged(found, refused, late)

    def question(self, orders: Orders, **more: int) -> RecordDict:
        content = wire.pack_orders(orders, self.run)
        ask = content[wire.ASK]
        assert isinstance(ask, ConfigRecord)
        ask.update(more)
        return content

    def reply(self, content: RecordDict, uploads: bool = True) -> Reply:
        """A reply to the orders of a round."""
        return self._read(content, self.due if uploads else {}, self.told)

    def _read(self, content: RecordDict, due: Mapping[str, torch.Size], told: set[str]) -> Reply:
        wire.only(content, wire.ARRAYS, wire.NUMBERS, wire.ASK)
        return Reply(wire.arrays(content, due), wire.numbers(content, told))

    def _check_question(self, content: RecordDict, round: int) -> None:
        asked = content.get(wire.ASK)
        if not isinstance(asked, ConfigRecord) or dict(asked) != {"run": self.run, "round": round}:
            raise wire.Refused(f"it answers another question than that of round {round}")

    def _count_late(self) -> int:
        late = 0
        for name, reply in pull(self.network, self.overdue):
            number = self.overdue.pop(name)
            if not _gone(reply):
                self.absences.heard(number)
                late += 1
        if late:
            self.say(f"{late} replies came after their round had ended, and are dropped")
        return late


def _gone(reply: Message | wire.Refused) -> bool:
    return isinstance(reply, Message) and reply.has_error() and reply.error.code in GONE
