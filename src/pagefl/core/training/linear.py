"""Linear-softmax models: a whole local training in one compiled kernel, a client's weights never leaving
the L1 cache."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from pagefl.core.evaluate import Scores
from pagefl.core.examples import Examples

from . import kernels
from .batches import Integers, shuffle
from .descent import Batch, Descended, Descent
from .model import Model, only


class LinearModel(Model):
    """weight [classes, features] and bias [classes]: the gradient in closed form, the descent fused."""

    path = "fused"
    chunk = 25
    scores_alone = True

    def __init__(self, module: nn.Module, device: str = "cpu") -> None:
        super().__init__(module, device)
        self.weight, self.bias = self.layout.shapes

    @staticmethod
    def fits(module: nn.Module, x: Tensor, device: str) -> bool:
        """Whether the module, whatever it is called, computes x @ weight.T + bias in float32 on a CPU."""
        shapes = [p.shape for p in module.parameters() if p.requires_grad]
        if (
            device != "cpu"
            or x.dim() < 2
            or len(shapes) != 2
            or len(shapes[0]) != 2
            or shapes[1] != shapes[0][:1]
        ):
            return False
        weight, bias = (p for p in module.parameters() if p.requires_grad)
        flat = x.flatten(1)
        if weight.dtype != torch.float32 or flat.dtype != torch.float32 or flat.shape[1] != weight.shape[1]:
            return False
        with torch.no_grad(), _other_values(weight, bias):
            return torch.allclose(module(x), flat @ weight.T + bias, atol=1e-5)

    def logits(self, rows: Tensor, x: Tensor) -> Tensor:
        views = self.layout.views(rows)
        return torch.baddbmm(views[self.bias][:, None], x.flatten(2), views[self.weight].transpose(1, 2))

    def gradient(self, rows: Tensor, batch: Batch, columns: slice | None = None) -> Tensor:
        logits = self.logits(rows, batch.x)
        error = (logits if batch.offset is None else logits + batch.offset[:, None]).softmax(-1)
        error.scatter_add_(-1, batch.y[..., None], torch.full_like(error[..., :1], -1.0))
        error = (error * batch.weight[..., None]).transpose(1, 2)
        return only(torch.cat([(error @ batch.x.flatten(2)).flatten(1), error.sum(-1)], dim=1), columns)

    def score(self, rows: Tensor, examples: Examples, owners: Tensor) -> Scores:
        starts, sizes = (part[owners].numpy() for part in (examples.starts, examples.sizes))
        return self._score(rows, examples, starts, sizes, with_loss=True)

    def accuracies(self, rows: Tensor, examples: Examples) -> npt.NDArray[np.float64]:
        everything = np.full(len(rows), len(examples.y))
        return self._score(rows, examples, np.zeros_like(everything), everything, with_loss=False).accuracy

    def _score(
        self, rows: Tensor, examples: Examples, starts: Integers, sizes: Integers, *, with_loss: bool
    ) -> Scores:
        scores = Scores(np.empty(len(starts)), np.empty(len(starts)))
        kernels.score(
            _array(rows, 2),
            examples.by_feature.numpy(),
            examples.y.numpy(),
            starts,
            sizes,
            with_loss,
            *scores,
        )
        return scores

    def descend(self, rows: Tensor, descent: Descent) -> Descended:
        options = descent.options
        unusual = options.direction is not None or options.columns is not None or descent.augment is not None
        if unusual or descent.optimiser != "sgd":
            return super().descend(rows, descent)  # what the kernel cannot do
        assert not isinstance(options.mu, float)
        fresh, anchor, top = (_array(part, 2, copy=True) for part in (rows, options.anchor, options.top))
        examples = kernels.Batched(
            descent.examples.x.flatten(1).numpy(),
            descent.examples.y.numpy(),
            descent.examples.starts[descent.owners].numpy(),
            *descent.batches,
        )
        steps = kernels.Steps(
            lr=_array(descent.lr, 1),
            weight_decay=np.float32(descent.weight_decay),
            clip=np.float32(descent.clip),
            mu=_array(options.mu, 1),
            shift=_array(options.shift, 2),
            offset=_array(options.offset, 2),
            repeats=options.repeats,
            anchor_rate=_array(options.anchor_rate, 1),
            momentum=np.float32(descent.momentum),
        )
        kernels.descend(fresh, anchor, top, examples, steps)
        pulled, personal = (torch.from_numpy(part) if len(part) else None for part in (anchor, top))
        return Descended(torch.from_numpy(fresh), pulled, personal, descent.length)


def compiled() -> bool:
    """Whether the kernels lie in numba's cache, so that the first call is quick."""
    return all(
        any(Path(f.stats.cache_path or ".").glob(f"*{f.py_func.__name__}-*.nbi"))
        for f in (kernels.descend, kernels.score, shuffle)
    )


def _array(tensor: Tensor | None, dimensions: int, copy: bool = False) -> npt.NDArray[np.float32]:
    """What is not there is empty, in the type that the kernel is compiled for."""
    if tensor is None:
        return np.zeros((0,) * dimensions, np.float32)
    return np.array(tensor.numpy(), np.float32, copy=copy or None, order="C")


@contextmanager
def _other_values(*parameters: Tensor) -> Iterator[None]:
    """Zero weights say nothing about a forward: try it on others, and put the old ones back."""
    kept = [p.detach().clone() for p in parameters]
    for p in parameters:
        p.data.copy_(torch.linspace(-1, 1, p.numel()).view_as(p))
    try:
        yield
    finally:
        for p, old in zip(parameters, kept, strict=True):
            p.data.copy_(old)
