"""Who is who: which of Flower's nodes is which client."""

from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Protocol

from flwr.app import ConfigRecord, Message, MessageType
from flwr.proto.node_pb2 import NodeInfo

from pagefl.game.messages import Orders
from pagefl.runtime.halves import Say

from . import wire
from .told import UNTOLD_AT_FIRST, implausible

AGAIN_SECONDS = 60.0
NUMBER = "number"


class Network(Protocol):
    """What is used of Flower's Grid."""

    def get_nodes(self) -> Iterable[NodeInfo]: ...

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...

    def pull_messages(self, names: Iterable[str]) -> Iterable[Message]: ...


class Introductions:
    """New nodes are asked for their number.

    The server has the public key of each client, if `keys` is given. A node whose key is not that of the
    client that it says it is, is refused.
    """

    def __init__(
        self,
        network: Network,
        clients: int,
        told: set[str],
        keys: Mapping[bytes, int] | None,
        run: str,
        say: Say,
    ) -> None:
        """`told`: the numbers that every node tells. `keys`: client numbers by public key."""
        self.network, self.clients, self.told, self.keys = network, clients, told, keys
        self.run, self.say = run, say
        self.numbers: dict[int, int] = {}  # Flower's node id -> client number
        self.asked: dict[str, int] = {}  # questions that are not answered yet: message id -> node id
        self.not_before: dict[int, float] = {}  # when a refused node may try again

    def go_on(self, orders: Orders) -> dict[int, dict[str, float]]:
        """Ask new nodes, and read the answers that have come: what each new client tells."""
        present = {node.node_id: node.public_key for node in self.network.get_nodes()}
        self.numbers = {node: number for node, number in self.numbers.items() if node in present}
        waiting = {*self.asked.values(), *self.numbers}
        fresh = [
            node for node in sorted(present.keys() - waiting) if monotonic() >= self.not_before.get(node, 0.0)
        ]
        content = wire.pack_orders(orders, self.run)
        messages = [Message(content, dst_node_id=node, message_type=MessageType.QUERY) for node in fresh]
        self.asked |= dict(zip(self.network.push_messages(messages), fresh, strict=True))
        found = {}
        for name, reply in pull(self.network, self.asked):
            node = self.asked.pop(name)
            try:
                number, told = self._who(reply, present.get(node, b""))
                found[number], self.numbers[node] = told, number
            except wire.Refused as reason:
                self.not_before[node] = monotonic() + AGAIN_SECONDS
                self.say(f"node {node} is turned away: {reason}")
        return found

    def _who(self, reply: "Message | wire.Refused", key: bytes) -> tuple[int, dict[str, float]]:
        content = wire.content(reply)
        wire.only(content, wire.ARRAYS, wire.NUMBERS, wire.ASK)
        asked = content[wire.ASK]
        if not isinstance(asked, ConfigRecord) or asked.get("version") != wire.VERSION:
            raise wire.Refused(f"it has another version of pagefl than the server, {wire.VERSION}")
        told = wire.numbers(content, {*self.told, NUMBER})
        if problem := implausible(told, UNTOLD_AT_FIRST):
            raise wire.Refused(problem)
        number = told.pop(NUMBER)
        if number not in range(self.clients):
            raise wire.Refused(f"it calls itself client {number:g}, and there are {self.clients}")
        if self.keys is not None and (own := self.keys.get(key)) != number:
            whose = "no client's" if own is None else f"that of client {own}"
            raise wire.Refused(f"it calls itself client {number:g}, and its key is {whose}")
        if number in self.numbers.values():
            raise wire.Refused(f"it calls itself client {number:g}, which another node is")
        return int(number), told


def pull(network: Network, names: Iterable[str]) -> list[tuple[str, "Message | wire.Refused"]]:
    """The replies to these messages that have come, or why one is refused.

    Each is pulled separately. A reply may lie about what it answers, and an unreadable one must not
    affect the others.
    """
    found: list[tuple[str, Message | wire.Refused]] = []
    for name in list(names):
        try:
            found += [(name, reply) for reply in network.pull_messages([name])]
        except wire.Refused as reason:
            found.append((name, reason))
        except Exception:  # malformed bytes may raise anything in Flower's parsers
            found.append((name, wire.Refused("its reply cannot be read")))
    return found
