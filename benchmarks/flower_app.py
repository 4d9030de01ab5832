"""Plain FedAvg as a Flower app, for `flower_simulation.py`: a client as in Flower's quickstart for PyTorch.

A module of its own, as Flower's users write it: Flower's actors import it and keep what it has built.
"""

import copy
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pagefl.bench.workloads import WORKLOADS
from pagefl.runtime.settings import Settings
from pagefl.runtime.task import Task


class Federation(NamedTuple):
    task: Task
    settings: Settings
    start: nn.Module
    local: nn.Module  # to be trained


@cache
def federation(workload: str, quick: bool) -> Federation:
    """Built once in a process. The same data and the same first model in every process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    task, settings = WORKLOADS[workload].task(quick), Settings(**WORKLOADS[workload].settings)
    start = task.fresh_module(settings.seed)
    return Federation(task, settings, start, copy.deepcopy(start))


client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Local training, and an evaluation of the trained model on the client's own test."""
    config = message.content["config"]
    task, settings, _, model = federation(config["workload"], config["quick"])
    client = int(context.node_config["partition-id"])
    x, y = task.data.train.client(client)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
    for _ in range(settings.epochs):
        for batch in torch.randperm(len(y)).split(settings.batch_size):
            optimizer.zero_grad()
            cross_entropy(model(x[batch]), y[batch]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
            optimizer.step()
    loss, accuracy = evaluate(model, *task.data.test.client(client))
    metrics = MetricRecord({"loss": loss, "accuracy": accuracy, "num-examples": len(y)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


def server_app(
    workload: str, quick: bool, rounds: int, ended: Callable[[dict[str, Tensor]], None]
) -> ServerApp:
    """`ended` is called with the shared model at the end of every round, and before the first one."""
    app = ServerApp()
    task, _, start, model = federation(workload, quick)
    data, clients = task.data, len(task.data.train)
    x, y = torch.cat([data.game.x, data.server_test.x]), torch.cat([data.game.y, data.server_test.y])

    def evaluate_shared(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        state = arrays.to_torch_state_dict()
        model.load_state_dict(state)
        loss, accuracy = evaluate(model, x, y)
        ended(state)
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        # Clients evaluate in `train`: Flower's own evaluation would cost a second message to each.
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(start.state_dict()),
            num_rounds=rounds,
            train_config=ConfigRecord({"workload": workload, "quick": quick}),
            evaluate_fn=evaluate_shared,
        )

    return app


def evaluate(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Loss and accuracy."""
    with torch.no_grad():
        logits = model(x)
        return cross_entropy(logits, y).item(), (logits.argmax(1) == y).float().mean().item()
