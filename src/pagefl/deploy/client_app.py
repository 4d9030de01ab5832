"""The ClientApp, which Flower runs on a node. Data, kept state and agent stay on the node's disk."""

from functools import lru_cache
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from pagefl.core.errors import UserError
from pagefl.experiments import own_code
from pagefl.experiments import spec as specs
from pagefl.experiments.spec import RunSpec
from pagefl.game.messages import Orders

from . import parties, wire
from .introductions import NUMBER
from .node import Node
from .secagg import messages as secagg

app = ClientApp()


@app.query()
def meet(message: Message, context: Context) -> Message:
    """Report which client this is, its number of examples, and the scores of the received model on them."""
    node, orders, number = _open(message, context)
    own = {**node.meet(orders), NUMBER: number}
    return Message(wire.pack({}, own, {"version": wire.VERSION}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round: observe, choose, train, learn, keep, answer."""
    node, orders, _ = _open(message, context)
    upload, told = node.answer(orders)
    if node.spec.deploy.secure:
        return secagg.mask(message, context, node, upload, told)
    return Message(wire.pack(upload, told, wire.answered(message.content)), reply_to=message)


@app.query("keys")
def keys(message: Message, context: Context) -> Message:
    """Stage 0 of secure aggregation."""
    return secagg.keys(message, context)


@app.query("shares")
def shares(message: Message, context: Context) -> Message:
    """Stage 1 of secure aggregation. Stage 2 is training."""
    return secagg.shares(message, context)


@app.query("unmask")
def unmask(message: Message, context: Context) -> Message:
    """Stage 3 of secure aggregation."""
    return secagg.unmask(message, context)


@app.evaluate()
def personal_step(message: Message, context: Context) -> Message:
    """Try the personal steps on this client's hold-out, or take the one that was chosen."""
    node, orders, _ = _open(message, context)
    told = node.personal_step(orders, wire.step(message.content))
    return Message(wire.pack({}, told, wire.answered(message.content)), reply_to=message)


def _open(message: Message, context: Context) -> tuple[Node, Orders, int]:
    config, asked = context.node_config, message.content[wire.ASK]
    assert isinstance(asked, ConfigRecord)
    if (theirs := str(asked.get("version", ""))) != wire.VERSION:
        raise UserError(
            f"the server has {f'pagefl {theirs}' if theirs else 'an older pagefl'}, and this node has pagefl "
            f"{wire.VERSION}; install the same"
        )
    spec = _spec(str(context.run_config["spec"]), *(config.get(kind) for kind in own_code.KINDS))
    if config.get("secure") and not spec.deploy.secure:
        raise UserError("--node-config secure=true: this node uploads to runs with deploy.secure = true only")
    number = _number(config.get("client"), spec)
    run = str(asked["run"])
    if not run.isalnum():  # it becomes the name of a folder
        raise UserError(f"run = {run!r}: expected letters and digits")
    data = parties.read_client(Path(str(config["data"])), holdout=spec.holdout > 0)
    node = Node(spec, number, data, Path(str(config["state"])), run)
    return node, wire.orders(message.content, number, *node.due), number


@lru_cache(maxsize=4)
def _spec(text: str, *allowed: object) -> RunSpec:
    """The spec that comes with every message. `allowed`: the node's own code, by kind."""
    # The spec came over the network. The node's operator decides which code it may use.
    for kind, own in zip(own_code.KINDS, allowed, strict=True):
        own_code.check_named(kind, specs.name_in(text, kind), own, "the spec of this run")
    return specs.of_text(text)


def _number(given: object, spec: RunSpec) -> int:
    clients = spec.task["clients"]
    if not isinstance(given, int) or not 0 <= given < clients:
        raise UserError(
            f"--node-config client={given}: expected a number from 0 to {clients - 1}, this node's own"
        )
    return given
