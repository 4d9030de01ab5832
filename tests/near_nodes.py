"""Nodes behind a grid that calls Flower's ClientApp directly, without processes and network."""

import torch
from federations import QUICK
from flwr.app import Context, Error, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.task_identity import TaskIdentity

from pagefl.core.errors import UserError
from pagefl.deploy import client_app, parties, server_app, wire
from pagefl.experiments import spec as specs
from pagefl.runtime.simulation import split

CLIENTS = 4
UNREADABLE = object()
# Flower's runtime sets it before an app begins
TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1


class NearGrid:
    """Every node in this process. `tamper`: by client, what becomes of its reply. `kind`: the messages whose
    replies are tampered with. `slow`: (client, round) answered a round late. `away`: (client, round) not
    there at all. `silent`: (client, round) never answered."""

    def __init__(self, spec, folder, tamper=None, slow=(), away=(), silent=(), kind=MessageType.TRAIN):
        self.kind, self.silent, self.asked = kind, silent, []
        self.tamper, self.slow, self.away, self.held, self.replies, self.round = (
            tamper or {},
            slow,
            away,
            [],
            {},
            0,
        )
        config = {"spec": spec.toml()}
        self.contexts = {
            1000 + i: Context(1, 1000 + i, self.config(folder, i), RecordDict(), config)
            for i in range(spec.task["clients"])
        }

    @staticmethod
    def config(folder, i):
        return {"client": i, "data": str(folder / parties.client_file(i)), "state": str(folder / f"node-{i}")}

    def get_nodes(self):
        self.replies |= dict(self.held)  # a new round begins
        self.held = []
        here = [node for node in self.contexts if (node - 1000, self.round + 1) not in self.away]
        return [NodeInfo(node_id=node, public_key=b"key of %d" % (node - 1000)) for node in here]

    def push_messages(self, messages):
        names = []
        for number, message in enumerate(messages):
            names.append(f"{len(self.replies)}-{self.round}-{number}")
            message.metadata.__dict__["_message_id"] = names[-1]
            context = self.contexts[message.metadata.dst_node_id]
            round, client = message.content[wire.ASK].get("round", 0), context.node_config["client"]
            self.asked.append((client, round))
            if (client, round) in self.silent:
                self.round = round
                continue
            try:
                reply = client_app.app(message, context)
            except UserError as error:  # as an executor does
                reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error)), reply_to=message)
            if round:
                self.round = round
                if client in self.tamper and message.metadata.message_type == self.kind:
                    changed = self.tamper[client](reply.content)
                    reply = Message(changed, reply_to=message) if isinstance(changed, RecordDict) else changed
                    if isinstance(reply, Error):
                        reply = Message(reply, reply_to=message)
                        reply.metadata.__dict__["_src_node_id"] = 1  # the SuperLink's own
                if (client, self.round) in self.slow:
                    self.held.append((names[-1], reply))
                    continue
            self.replies[names[-1]] = reply
        return names

    def pull_messages(self, names):
        here = [name for name in names if name in self.replies]
        for name in here:
            if self.replies[name] is UNREADABLE:
                del self.replies[name]
                raise ValueError("whatever Flower's parsers raise")
        return [self.replies.pop(name) for name in here]


def spec_of(algorithm="fedavg", players="fixed", task="synthetic", **settings):
    # so that agents learn in five short rounds
    own = {"page": {"warm_up": 2, "epochs_max": 4}, "page-shared": {"explore": 0.8, "epochs_max": 4}}
    own["dapfl"] = own["page"]
    raw = {
        "task": {"name": task, "clients": CLIENTS},
        "algorithm": {"name": algorithm, **QUICK.get(algorithm, {})},
        "players": {"name": players, **own.get(players, {})},
    }
    return specs.resolve(
        {
            "rounds": 5,
            "epochs": 2,
            "batch_size": 70 if "mlp" in task else 20,
            "workers": 1,
            "path": "rows" if "mlp" in task else "auto",
            **raw,
            **settings,
        }
    )


def deploy(spec, folder, said=None, numbers=None, **grid):
    """`numbers`: of clients, by the keys of nodes. `grid`: of NearGrid, or one as `near`."""
    data = folder / "data"
    folder.mkdir(exist_ok=True)
    if not data.exists():
        parties.write(split(spec.make_task(), spec), data)
    near = grid.pop("near", None) or NearGrid(spec, data, **grid)
    (folder / "run").mkdir(exist_ok=True)

    def say(message):
        if said is not None and not message.startswith("compiling"):  # on a machine that has not done so
            said.append(message)

    return server_app.serve(
        lambda largest: near, spec.toml(), data / parties.SERVER, folder / "run", say, numbers
    )


def replaced(content, arrays=None, told=None, ask=None, **more):
    records = {
        wire.ARRAYS: arrays or content[wire.ARRAYS],
        wire.NUMBERS: told or content[wire.NUMBERS],
        wire.ASK: ask or content[wire.ASK],
    }
    return RecordDict({**records, **more})


def with_values(change):
    def tamper(content):
        own = wire.arrays(content, {"model": torch.Size([930])})
        return replaced(content, wire.pack(change(own))[wire.ARRAYS])

    return tamper
