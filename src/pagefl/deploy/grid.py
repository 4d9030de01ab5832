"""Nodes behind Flower's Grid: one message to each, sorted replies, deadlines."""

from collections.abc import Iterable
from time import monotonic, sleep

import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from pagefl.core.errors import UserError
from pagefl.core.personal import Step
from pagefl.experiments.spec import RunSpec
from pagefl.game.messages import Orders
from pagefl.runtime.halves import Say

from . import wire
from .client_app import NUMBER
from .node import told_of_step
from .remote import Replies, Reply
from .told import UNTOLD_AT_FIRST, implausible

POLL_SECONDS, AGAIN_SECONDS = 1.0, 60.0
# The SuperLink's answer for a node that has died, after a minute. Such a node is missing, not quarantined.
GONE = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)


class GridNodes:
    """The nodes of a run, reached through Flower's Grid.

    The sender of a reply is known by the message that it answers. What a reply says about its sender is not
    trusted.
    """

    def __init__(
        self, grid: Grid, spec: RunSpec, due: dict[str, torch.Size], told: set[str], run: str, say: Say
    ) -> None:
        """`due`: the uploads that are expected, by name and shape. `told`: the numbers that are."""
        self.grid, self.spec, self.due, self.told, self.run, self.say = grid, spec, due, told, run, say
        self.clients = spec.task["clients"]
        self.numbers: dict[int, int] = {}  # Flower's node id -> client number
        self.asked_who: dict[str, int] = {}  # questions that are not answered yet: message id -> node id
        self.not_before: dict[int, float] = {}  # when a refused node may try again
        self.overdue: set[str] = set()  # messages of earlier rounds that are not answered yet
        self.begun = False

    def meet(self, orders: Orders) -> dict[int, dict[str, float]]:
        """Meet new nodes.

        At the start this waits for all clients. After `deploy.patience` seconds it continues if enough have
        come. Later it does not wait.
        """
        end = monotonic() + self.spec.deploy.patience
        told = self._introduce(orders)
        if self.begun:
            return told
        while len(self.numbers) < self.clients and monotonic() < end:
            sleep(POLL_SECONDS)
            told |= self._introduce(orders)
        if len(self.numbers) < self.spec.deploy.fewest * self.clients:
            raise UserError(
                f"{len(self.numbers)} of {self.clients} clients came within deploy.patience = "
                f"{self.spec.deploy.patience} "
                "seconds; start the nodes that are missing and give the same command again"
            )
        self.begun = True
        return told

    def _introduce(self, orders: Orders) -> dict[int, dict[str, float]]:
        """Ask new nodes who they are, and read the answers that have come."""
        present = set(self.grid.get_node_ids())
        self.numbers = {node: number for node, number in self.numbers.items() if node in present}
        waiting = {*self.asked_who.values(), *self.numbers}
        fresh = [node for node in sorted(present - waiting) if monotonic() >= self.not_before.get(node, 0.0)]
        content = wire.pack_orders(orders, self.run)
        messages = [Message(content, dst_node_id=node, message_type=MessageType.QUERY) for node in fresh]
        self.asked_who |= dict(zip(self.grid.push_messages(messages), fresh, strict=True))
        found = {}
        for name, reply in self._pull(self.asked_who):
            node = self.asked_who.pop(name)
            try:
                number, told = self._who(reply)
                found[number], self.numbers[node] = told, number
            except wire.Refused as reason:
                self.not_before[node] = monotonic() + AGAIN_SECONDS
                self.say(f"node {node} is turned away: {reason}")
        return found

    def _who(self, reply: Message | None) -> tuple[int, dict[str, float]]:
        content = _content(reply)
        wire.only(content, wire.ARRAYS, wire.NUMBERS)
        told = wire.numbers(content, {*self.told, NUMBER})
        if problem := implausible(told, UNTOLD_AT_FIRST):
            raise wire.Refused(problem)
        number = told.pop(NUMBER)
        if number not in range(self.clients):
            raise wire.Refused(f"it calls itself client {number}, and there are {self.clients}")
        if number in self.numbers.values():
            raise wire.Refused(f"it calls itself client {int(number)}, which another node is")
        return int(number), told

    def ask(self, orders: Orders) -> Replies:
        """One round of the clients that are ordered to train."""
        content = wire.pack_orders(orders, self.run)
        return self._ask(orders, MessageType.TRAIN, content, self.due, self.told)

    def ask_for_step(self, orders: Orders, step: Step | None) -> Replies:
        """The personal step, or a trial of all of them."""
        content, told = wire.pack_orders(orders, self.run, step), told_of_step(self.spec, step)
        return self._ask(orders, MessageType.EVALUATE, content, {}, told)

    def _ask(
        self, orders: Orders, kind: str, content: RecordDict, due: dict[str, torch.Size], told: set[str]
    ) -> Replies:
        late, round = self._count_late(), orders.round
        here = {number: node for node, number in self.numbers.items()}
        asked = [number for number in orders.clients.tolist() if number in here]
        messages = [
            Message(content, dst_node_id=here[number], message_type=kind, group_id=str(round))
            for number in asked
        ]
        waiting = dict(zip(self.grid.push_messages(messages), asked, strict=True))
        replies, refused = {}, {}
        end = monotonic() + self.spec.deploy.deadline
        while waiting and monotonic() < end:
            for name, reply in self._pull(waiting):
                number = waiting.pop(name)
                if _gone(reply):
                    continue
                try:
                    replies[number] = self._checked(reply, round, due, told)
                except wire.Refused as reason:
                    refused[number] = str(reason)
            sleep(POLL_SECONDS if waiting else 0)
        self.overdue |= set(waiting)
        missing = len(orders.clients) - len(replies) - len(refused)
        return Replies(replies, refused, missing, late)

    def _checked(
        self, reply: Message | None, round: int, due: dict[str, torch.Size], told: set[str]
    ) -> Reply:
        content = _content(reply)
        wire.only(content, wire.ARRAYS, wire.NUMBERS, wire.ASK)
        asked = content[wire.ASK]
        if not isinstance(asked, ConfigRecord) or dict(asked) != {"run": self.run, "round": round}:
            raise wire.Refused(f"it answers another question than that of round {round}")
        return Reply(wire.arrays(content, due), wire.numbers(content, told))

    def _count_late(self) -> int:
        came = dict(self._pull(self.overdue))
        self.overdue -= set(came)
        late = sum(not _gone(reply) for reply in came.values())
        if late:
            self.say(f"{late} replies came after their round had ended, and are dropped")
        return late

    def _pull(self, names: Iterable[str]) -> list[tuple[str, Message | None]]:
        """The replies to these messages that have come; None for a reply that cannot be read.

        Each is pulled separately. A reply may lie about what it answers, and an unreadable one must not
        affect the others.
        """
        found: list[tuple[str, Message | None]] = []
        for name in list(names):
            try:
                found += [(name, reply) for reply in self.grid.pull_messages([name])]
            except Exception:  # malformed bytes may raise anything in Flower's parsers
                found.append((name, None))
        return found


def _gone(reply: Message | None) -> bool:
    return reply is not None and reply.has_error() and reply.error.code in GONE


def _content(reply: Message | None) -> RecordDict:
    if reply is None:
        raise wire.Refused("its reply cannot be read")
    if reply.has_error():
        raise wire.Refused(
            f"it answers with an error: {wire.quoted(reply.error.reason or f'code {reply.error.code}')}"
        )
    return reply.content
