"""Model: logits and gradients for a stack of rows; one row is a stack of one. The only place that is
vectorised."""

from abc import ABC, abstractmethod
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from pagefl.core.errors import UserError
from pagefl.core.evaluate import Scores, cross_entropy, score
from pagefl.core.examples import Examples
from pagefl.core.layout import Layout

from .descent import Batch, Descended, Descent
from .loss import Loss
from .optimisers import OPTIMISERS


class Model(ABC):
    """A module that keeps no parameters of its own: they come as rows."""

    path: str
    chunk: int  # rows trained together unless the user says otherwise
    scores_alone: bool = False  # True: the score of a row has the same bits whoever is scored with it

    def __init__(self, module: nn.Module, device: str = "cpu") -> None:
        self.layout = Layout(module)
        self.module = module.to(device)
        self.device = device
        self.loss: Loss = cross_entropy
        self.why = ""  # why no faster path was taken, where one was tried

    @property
    def how(self) -> str:
        """The path, and why it is not a faster one."""
        return f"{self.path}, since {self.why}" if self.why else self.path

    @property
    def arithmetic(self) -> str:
        """What decides the last bits of results, besides the settings."""
        return f"{self.path}, torch {torch.__version__}"

    @abstractmethod
    def logits(self, rows: Tensor, x: Tensor) -> Tensor:
        """[n, batch, classes], as the module answers outside of training."""

    def check_examples(self, row: Tensor, examples: Examples, who: str, first: int = 0) -> None:
        """Raise unless the model has an answer for these examples. `who`: see `Examples.of_type`."""
        x = examples.x[None, :1].clone()  # a forward may change it in place
        try:
            classes = self.logits(row[None], x).shape[-1]
        except UserError:
            raise
        except Exception as error:  # whatever a user's own forward may raise
            words = " ".join(str(error).split())
            raise UserError(
                f"{who.format(first)}: module {type(self.module).__name__} cannot take an example of "
                f"{x.dtype} {list(x.shape[2:])}: {words}"
            ) from error
        examples.check_labels(classes, who, first)

    def score(self, rows: Tensor, examples: Examples, owners: Tensor) -> Scores:
        """Row i on the examples of owners[i]; a single row is evaluated on the examples of every owner."""
        return score(lambda x: self.logits(rows, x), self.loss, len(rows), examples, owners)

    def accuracies(self, rows: Tensor, examples: Examples) -> npt.NDArray[np.float64]:
        """Every row on all of the examples, whoever owns them."""
        whole = Examples(examples.x, examples.y, torch.tensor([0, len(examples.y)]))
        parts = [self.score(row[None], whole, torch.tensor([0])).accuracy for row in rows]
        return np.concatenate([*parts, np.empty(0)])

    @abstractmethod
    def gradient(self, rows: Tensor, batch: Batch, columns: slice | None = None) -> Tensor:
        """The gradient of each row's mean loss on its own batch; zero outside of `columns`."""

    def descend(self, rows: Tensor, descent: Descent) -> Descended:
        """Carry a descent out. Rows that have done all their steps leave the stack: a shrinking prefix, no
        wasted work."""
        descent, order = descent.sorted()
        order, options = order.to(rows.device), descent.options
        optimiser, anchor = OPTIMISERS[descent.optimiser], options.anchor  # rows, anchor and top are copies
        moving = optimiser(rows[order], descent.rates, options.columns or slice(None))
        top = None if options.top is None else optimiser(options.top, descent.rates, slice(None))
        for n, batch in descent.walk():
            active, who = moving.rows[:n], order[:n]

            def direction(own: Tensor, batch: Batch = batch, who: Tensor = who) -> Tensor:
                return descent.direction(own, self.gradient(own, batch, options.columns), who, anchor)

            for _ in range(options.repeats):
                if top is not None:
                    top.step(n, partial(self._top_gradient, active, batch))
                moving.step(n, direction)
            if options.anchor_rate is not None and anchor is not None:
                anchor[:n].add_(options.anchor_rate[:n, None] * (active - anchor[:n]))
        done = Descended(moving.rows, anchor, None if top is None else top.rows, moving.length)
        back = order.argsort()
        if bool((back.diff() > 0).all()):  # in order already: a large row is not copied for nothing
            return done
        return Descended(
            done.rows[back],
            None if done.anchor is None else done.anchor[back],
            None if done.top is None else done.top[back],
            done.length[back],
        )

    def _top_gradient(self, rows: Tensor, batch: Batch, top: Tensor) -> Tensor:
        """The gradient of `top`, which is added to the last columns: with a linear head, that of these
        columns at row + top."""
        last = slice(self.layout.width - top.shape[1], self.layout.width)
        whole = rows.clone()
        whole[:, last] += top
        return self.gradient(whole, batch._replace(offset=None), last)[:, last]

    def _leaves(self, rows: Tensor, columns: slice | None) -> tuple[dict[str, Tensor], list[str]]:
        """The parameters to differentiate by, and their names."""
        leaves = {name: view.detach().contiguous() for name, view in self.layout.views(rows).items()}
        wanted = self.layout.within(columns)
        for name in wanted:
            leaves[name].requires_grad_()
        return leaves, wanted

    def _mode(self, training: bool) -> nn.Module:
        if self.module.training != training:
            self.module.train(training)
        return self.module


class StackedModel(Model):
    """Small models: one vmapped forward for the whole stack, differentiated by the sum of the clients'
    losses."""

    path = "stacked"

    def __init__(self, module: nn.Module, device: str = "cpu") -> None:
        super().__init__(module, device)
        # Of small models many at once; of larger ones few, which already fill a core, so that all workers
        # have some.
        self.chunk = max(1, min(32, 4_000_000 // self.layout.width))

    def _forward(self, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        result: Tensor = vmap(lambda p, x: functional_call(self.module, p, (x,)))(parameters, x)
        return result

    def logits(self, rows: Tensor, x: Tensor) -> Tensor:
        self._mode(training=False)
        with torch.no_grad():
            return self._forward(self.layout.views(rows), x)

    def gradient(self, rows: Tensor, batch: Batch, columns: slice | None = None) -> Tensor:
        self._mode(training=True)
        leaves, wanted = self._leaves(rows, columns)
        logits = self._forward(leaves, batch.x)
        if batch.offset is not None:
            logits = logits + batch.offset[:, None]
        loss = (self.loss(logits, batch.y) * batch.weight).sum()
        gradients = torch.autograd.grad(loss, [leaves[name] for name in wanted], materialize_grads=True)
        if columns is None:
            return torch.cat([self.layout.flat(g, stacked=True) for g in gradients], dim=1)
        result = torch.zeros_like(rows)
        for name, g in zip(wanted, gradients, strict=True):
            result[:, self.layout.columns[name]] = self.layout.flat(g, stacked=True)
        return only(result, columns)


class RowModel(Model):
    """Large models, and modules that vmap cannot take: one row after the other, as the module's author
    wrote it."""

    path = "rows"
    chunk = 1

    def logits(self, rows: Tensor, x: Tensor) -> Tensor:
        module = self._mode(training=False)
        with torch.no_grad():
            return torch.stack(
                [
                    functional_call(module, self.layout.views(row), (own,))
                    for row, own in zip(rows, x, strict=True)
                ]
            )

    def gradient(self, rows: Tensor, batch: Batch, columns: slice | None = None) -> Tensor:
        module = self._mode(training=True)
        result = torch.empty_like(rows) if columns is None else torch.zeros_like(rows)
        for i, row in enumerate(rows):
            real = batch.weight[i] > 0  # odd layers never see an example that only pads
            leaves, wanted = self._leaves(row, columns)
            logits = functional_call(module, leaves, (batch.x[i][real],))
            if batch.offset is not None:
                logits = logits + batch.offset[i]
            loss = self.loss(logits, batch.y[i][real]).mean()
            gradients = torch.autograd.grad(loss, [leaves[name] for name in wanted], materialize_grads=True)
            for name, g in zip(wanted, gradients, strict=True):
                result[i, self.layout.columns[name]] = self.layout.flat(g)
        return only(result, columns)


def only(gradient: Tensor, columns: slice | None) -> Tensor:
    """Zero outside of the columns, in place: these may cut through a parameter."""
    if columns is not None:
        gradient[:, : columns.start] = 0.0
        gradient[:, columns.stop :] = 0.0
    return gradient


def check_trainable(module: nn.Module, x: Tensor) -> bool:
    """Refuse a module that cannot be averaged or evaluated. Return whether it draws random numbers when it
    trains."""
    name = type(module).__name__
    Layout(module)
    before = {key: buffer.clone() for key, buffer in module.named_buffers()}
    module.train()
    with torch.no_grad():
        try:
            first, second = module(x), module(x)
        except Exception as error:  # whatever a user's own forward may raise
            words = " ".join(str(error).split())  # torch's may have several lines
            raise UserError(
                f"module {name} cannot take a batch of {x.dtype} {list(x.shape)}: {words}"
            ) from error
    changed = [key for key, buffer in module.named_buffers() if not torch.equal(buffer, before[key])]
    if changed:
        raise UserError(
            f"module {name} changes its buffer {changed[0]} while it trains (BatchNorm does), and such "
            "statistics cannot be a client's row; use GroupNorm or LayerNorm, or BatchNorm with "
            "track_running_stats=False"
        )
    if not isinstance(first, Tensor) or first.dim() != 2 or len(first) != len(x):
        found = f"shape {list(first.shape)}" if isinstance(first, Tensor) else f"a {type(first).__name__}"
        raise UserError(
            f"module {name} answers a batch of {len(x)} with {found}; expected a tensor [{len(x)}, classes]"
        )
    return not torch.equal(first, second)
