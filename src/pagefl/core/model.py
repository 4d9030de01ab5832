"""Model: logits and gradients for a stack of rows; one row is a stack of one. The only place that is vectorised."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from .descent import Descent
from .errors import UserError
from .layout import Layout


class Batch(NamedTuple):
    x: Tensor  # [n, batch, ...]
    y: Tensor  # [n, batch]
    weight: Tensor  # [n, batch] one over the number of real examples; zero where the batch is only padded


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Per example. Written out because torch's own under vmap takes half of a step."""
    return logits.logsumexp(-1) - logits.gather(-1, y.unsqueeze(-1)).squeeze(-1)


class Model:
    """A module that keeps no parameters of its own: they come as rows."""

    path: str
    chunk: int  # rows trained together unless the user says otherwise

    def __init__(self, module: nn.Module, device: str = "cpu") -> None:
        self.layout = Layout(module)
        self.module = module.to(device)
        self.device = device

    def logits(self, rows: Tensor, x: Tensor) -> Tensor:
        """[n, batch, classes], as the module answers outside of training."""
        raise NotImplementedError

    def gradient(self, rows: Tensor, batch: Batch) -> Tensor:
        """The gradient of each row's mean loss on its own batch."""
        raise NotImplementedError

    def descend(self, rows: Tensor, descent: Descent) -> Tensor:
        """Carry a descent out. Rows that have done all their steps leave the stack: a shrinking prefix, no wasted work."""
        order, working = descent.schedule()
        order_on_device = order.to(self.device)
        moving = rows[order_on_device]  # a copy
        positions = torch.from_numpy(descent.batches.positions).to(self.device)[order_on_device]
        counts = torch.from_numpy(descent.batches.counts).to(self.device)[order_on_device]
        places = torch.arange(positions.shape[2], device=self.device)
        starts = descent.examples.starts.to(self.device)[descent.owners.to(self.device)][order_on_device]
        lr = descent.lr[order_on_device]
        for step, n in enumerate(working):
            active = moving[:n]
            chosen = starts[:n, None] + positions[:n, step]
            count = counts[:n, step, None]
            batch = Batch(descent.examples.x[chosen], descent.examples.y[chosen], (places < count) / count)
            direction = descent.step_direction(active, self.gradient(active, batch), order_on_device[:n])
            rate = lr[:n]
            if descent.clip < float("inf"):
                norms = direction.norm(dim=1)
                rate = rate * (descent.clip / (norms + 1e-6)).clamp(max=1.0)  # torch's clip_grad_norm_
            active.mul_((1 - lr[:n] * descent.weight_decay)[:, None]).addcmul_(direction, -rate[:, None])
        result = torch.empty_like(moving)
        result[order_on_device] = moving
        return result

    def _mode(self, training: bool) -> nn.Module:
        if self.module.training != training:
            self.module.train(training)
        return self.module


class StackedModel(Model):
    """Small models: one vmapped forward for the whole stack, differentiated by the sum of the clients' losses."""

    path = "stacked"
    chunk = 32

    def _forward(self, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        result: Tensor = vmap(lambda p, x: functional_call(self.module, p, (x,)))(parameters, x)
        return result

    def logits(self, rows: Tensor, x: Tensor) -> Tensor:
        self._mode(training=False)
        with torch.no_grad():
            return self._forward(self.layout.views(rows), x)

    def gradient(self, rows: Tensor, batch: Batch) -> Tensor:
        self._mode(training=True)
        leaves = {name: view.detach().requires_grad_() for name, view in self.layout.views(rows).items()}
        loss = (cross_entropy(self._forward(leaves, batch.x), batch.y) * batch.weight).sum()
        gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        return torch.cat([g.reshape(len(rows), -1) for g in gradients], dim=1)


class RowModel(Model):
    """Large models, and modules that vmap cannot take: one row after the other, as the module's author wrote it."""

    path = "rows"
    chunk = 1

    def logits(self, rows: Tensor, x: Tensor) -> Tensor:
        module = self._mode(training=False)
        with torch.no_grad():
            return torch.stack(
                [functional_call(module, self.layout.views(row), (own,)) for row, own in zip(rows, x, strict=True)]
            )

    def gradient(self, rows: Tensor, batch: Batch) -> Tensor:
        module = self._mode(training=True)
        result = torch.empty_like(rows)
        for i, row in enumerate(rows):
            real = batch.weight[i] > 0  # nothing is padded here, so that odd layers never see a made-up example
            leaves = {name: view.detach().requires_grad_() for name, view in self.layout.views(row).items()}
            losses = cross_entropy(functional_call(module, leaves, (batch.x[i][real],)), batch.y[i][real])
            gradients = torch.autograd.grad(losses.mean(), list(leaves.values()), materialize_grads=True)
            torch.cat([g.reshape(-1) for g in gradients], out=result[i])
        return result


def check_trainable(module: nn.Module, x: Tensor, labels: int) -> bool:
    """Refuse what cannot be averaged or judged; tell whether the module draws random numbers when it trains."""
    name = type(module).__name__
    before = {key: buffer.clone() for key, buffer in module.named_buffers()}
    module.train()
    with torch.no_grad():
        try:
            first, second = module(x), module(x)
        except Exception as error:  # whatever a user's own forward may raise
            raise UserError(f"module {name} cannot take a batch of shape {list(x.shape)}: {error}") from error
    changed = [key for key, buffer in module.named_buffers() if not torch.equal(buffer, before[key])]
    if changed:
        raise UserError(
            f"module {name} changes its buffer {changed[0]} while it trains (BatchNorm does), and such statistics "
            "cannot be a client's row; use GroupNorm or LayerNorm, or BatchNorm with track_running_stats=False"
        )
    if first.dim() != 2 or len(first) != len(x) or first.shape[1] < labels:
        raise UserError(
            f"module {name} answers a batch of {len(x)} with shape {list(first.shape)}; "
            f"valid is [{len(x)}, classes] with at least {labels} classes, as many as there are labels"
        )
    return not torch.equal(first, second)
