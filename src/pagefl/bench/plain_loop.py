"""Plain FedAvg with nn.Module and torch.optim.SGD, one client after the other: the engine's opponent."""

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pagefl.core.arrays import Floats
from pagefl.core.examples import Splits
from pagefl.runtime.settings import Settings

from .clock import now

PLAIN_CLIENTS = 100  # at most so many clients are timed; the time is scaled to all


def plain_round(model: nn.Module, data: Splits, settings: Settings) -> Floats:
    """Seconds of one round, wall and CPU. If only some clients were timed, their time is scaled to all."""
    start = now()
    timed = min(len(data.train), PLAIN_CLIENTS)
    total = int(data.train.sizes[:timed].sum())
    average = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    for i in range(timed):
        x, y = data.train.client(i)
        local = copy.deepcopy(model)
        optimizer = torch.optim.SGD(local.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
        for _ in range(settings.epochs):
            for batch in torch.randperm(len(y)).split(settings.batch_size):
                optimizer.zero_grad()
                cross_entropy(local(x[batch]), y[batch]).backward()
                nn.utils.clip_grad_norm_(local.parameters(), settings.clip)
                optimizer.step()
        for name, value in local.state_dict().items():
            average[name] += value * (len(y) / total)
        _evaluate(local, *data.test.client(i))
    model.load_state_dict(average)
    middle = now()
    _evaluate(
        model, torch.cat([data.game.x, data.server_test.x]), torch.cat([data.game.y, data.server_test.y])
    )
    return (middle - start) * len(data.train) / timed + now() - middle


def _evaluate(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    with torch.no_grad():
        logits = model(x)
        return cross_entropy(logits, y).item(), (logits.argmax(1) == y).float().mean().item()
