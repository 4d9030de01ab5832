"""Nodes over Flower's Grid: one message to each, sorted answers, deadlines."""

from time import monotonic, sleep

from flwr.app import ConfigRecord, Message, MessageType
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from pagefl.core.algorithm import State
from pagefl.core.errors import UserError
from pagefl.experiments.spec import RunSpec
from pagefl.game.rules import Bias

from . import wire
from .client_app import NUMBER
from .node import told_by
from .remote import Answers, Reply, Say, ServerHalf

POLL_SECONDS = 1.0
# What the SuperLink answers for a node that has died, after a minute: nobody's fault, so it is missing and not quarantined.
GONE = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)


class GridNodes:
    def __init__(self, grid: Grid, spec: RunSpec, federation: ServerHalf, run: str, say: Say) -> None:
        self.grid, self.spec, self.federation, self.run, self.say = grid, spec, federation, run, say
        self.clients = spec.task["clients"]
        self.numbers: dict[int, int] = {}  # Flower's id of a node -> the client's number
        self.turned_away: set[int] = set()
        self.overdue: set[str] = set()  # messages of earlier rounds that nobody has answered

    def meet(self, sent: State) -> dict[int, dict[str, float]]:
        """At the start it waits for all, and goes on with those that came if they are enough."""
        told: dict[int, dict[str, float]] = {}
        end = monotonic() + self.spec.deploy.patience
        at_start = not self.numbers
        while True:
            present = set(self.grid.get_node_ids())
            self.numbers = {node: number for node, number in self.numbers.items() if node in present}
            if fresh := sorted(present - set(self.numbers) - self.turned_away):
                told |= self._introduce(fresh, sent)
            if not at_start or len(self.numbers) == self.clients:
                return told
            if monotonic() > end:
                if len(self.numbers) >= self.spec.deploy.fewest * self.clients:
                    return told
                raise UserError(
                    f"{len(self.numbers)} of {self.clients} clients came within deploy.patience = {self.spec.deploy.patience} "
                    "seconds; start the nodes that are missing and give the same command again"
                )
            sleep(POLL_SECONDS)

    def _introduce(self, nodes: list[int], sent: State) -> dict[int, dict[str, float]]:
        due = {*told_by(self.spec), NUMBER}
        content = wire.pack(sent, ask={"run": self.run})
        messages = [Message(content, dst_node_id=node, message_type=MessageType.QUERY) for node in nodes]
        found = {}
        replies = self.grid.send_and_receive(messages, timeout=self.spec.deploy.deadline)
        for reply in sorted(replies, key=lambda reply: reply.metadata.src_node_id):
            node = reply.metadata.src_node_id
            try:
                told = wire.numbers(_content(reply), due)
                number = told.pop(NUMBER)
                if number not in range(self.clients):
                    raise wire.Refused(f"it calls itself client {number}, and there are {self.clients}")
                if number in self.numbers.values():
                    raise wire.Refused(f"it calls itself client {int(number)}, which another node is")
            except wire.Refused as reason:
                self.turned_away.add(node)
                self.say(f"node {node} is turned away: {reason}")
                continue
            self.numbers[node] = int(number)
            found[int(number)] = told
        return found

    def ask(self, round: int, bias: Bias, sent: State, mean_size: float, who: list[int]) -> Answers:
        late = self._count_late()
        here = {number: node for node, number in self.numbers.items()}
        content = wire.pack(sent, ask={"run": self.run, "round": round, "bias": str(bias), "mean_size": mean_size})
        messages = [
            Message(content, dst_node_id=here[number], message_type=MessageType.TRAIN, group_id=str(round))
            for number in who
            if number in here
        ]
        waiting = set(self.grid.push_messages(messages))
        replies, refused = {}, {}
        end = monotonic() + self.spec.deploy.deadline
        while waiting and monotonic() < end:
            for reply in self.grid.pull_messages(waiting):
                waiting.discard(reply.metadata.reply_to_message_id)
                number = self.numbers[reply.metadata.src_node_id]
                if reply.has_error() and reply.error.code in GONE:
                    continue
                try:
                    replies[number] = self._checked(reply, round)
                except wire.Refused as reason:
                    refused[number] = str(reason)
            sleep(POLL_SECONDS if waiting else 0)
        self.overdue |= waiting
        missing = len(who) - len(replies) - len(refused)
        return Answers(dict(sorted(replies.items())), refused, missing, late)

    def _checked(self, reply: Message, round: int) -> Reply:
        content = _content(reply)
        wire.only(content, wire.ARRAYS, wire.NUMBERS, wire.ASK)
        asked = content[wire.ASK]
        if not isinstance(asked, ConfigRecord) or dict(asked) != {"run": self.run, "round": round}:
            raise wire.Refused(f"it answers another question than that of round {round}")
        return Reply(wire.arrays(content, self.federation.due), wire.numbers(content, told_by(self.spec)))

    def _count_late(self) -> int:
        if not self.overdue:
            return 0
        came = [reply.metadata.reply_to_message_id for reply in self.grid.pull_messages(self.overdue)]
        self.overdue -= set(came)
        if came:
            self.say(f"{len(came)} replies came after their round had ended, and are dropped")
        return len(came)


def _content(reply: Message):  # type: ignore[no-untyped-def]
    if reply.has_error():
        raise wire.Refused(f"it answers with an error: {reply.error.reason}")
    return reply.content
