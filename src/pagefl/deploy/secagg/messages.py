"""The messages of secure aggregation, as a node answers them."""

from flwr.app import ConfigRecord, Context, Message, RecordDict

from pagefl.core.algorithm import State
from pagefl.core.errors import UserError
from pagefl.deploy import wire
from pagefl.deploy.node import Node
from pagefl.game.messages import SIZE

from .client import Secrets, Table, packed, unpacked, vector
from .rules import sums_of

SECAGG, MASKED = "secagg", "masked"


def keys(message: Message, context: Context) -> Message:
    ask = _ask(message)
    return _reply(message, ConfigRecord({"keys": _secrets(context).keys(ask["round"])}))


def shares(message: Message, context: Context) -> Message:
    ask = _ask(message)
    found = _secrets(context).shares(ask["round"], _table(message, 2), ask["threshold"])
    return _reply(message, packed(found))


def mask(message: Message, context: Context, node: Node, upload: State, told: dict[str, float]) -> Message:
    """The upload of a round, masked, and what the client tells besides."""
    settings, ask, half = node.spec.deploy, _ask(message), node.leaders.half
    algorithm = half.algorithm
    sums = sums_of(algorithm, algorithm.server_state(node.row.clone()), upload)
    values = vector(upload, sums, told[SIZE], settings)
    data = _secrets(context).masked(
        ask["round"], _table(message, 1), values, settings.secure_range, ask["summed"]
    )
    content = wire.pack({}, told, wire.answered(message.content))
    content[SECAGG] = ConfigRecord({MASKED: data})
    return Message(content, reply_to=message)


def unmask(message: Message, context: Context) -> Message:
    ask = _ask(message)
    alive = [int(number) for number in message.content[wire.ASK]["alive"]]  # type: ignore[union-attr]
    return _reply(message, packed(_secrets(context).unmasking(ask["round"], alive, list(_table(message, 0)))))


def _secrets(context: Context) -> Secrets:
    if SECAGG not in context.state:
        context.state[SECAGG] = ConfigRecord()
    record, own = context.state[SECAGG], context.node_config.get("client")
    assert isinstance(record, ConfigRecord)
    assert isinstance(own, int)
    return Secrets(record, own)


def _ask(message: Message) -> dict[str, int]:
    ask = message.content[wire.ASK]
    assert isinstance(ask, ConfigRecord)
    return {name: value for name, value in ask.items() if isinstance(value, int)}


def _table(message: Message, length: int) -> Table:
    record = message.content.get(SECAGG)
    if not isinstance(record, ConfigRecord):
        raise UserError(f"secure aggregation: the message has no {SECAGG}")
    return unpacked(record, length)


def _reply(message: Message, record: ConfigRecord) -> Message:
    content = wire.pack({}, ask=wire.answered(message.content))
    return Message(RecordDict({**content, SECAGG: record}), reply_to=message)
