"""Linear-softmax models: a whole local training in one compiled kernel, a client's weights never leaving the L1 cache."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numba import njit
from torch import Tensor, nn

from .batches import _shuffle
from .descent import Descent
from .model import Batch, Model

# No "nnan" and no "ninf": a model that diverged must still be seen to have diverged.
FAST = {"contract", "reassoc", "nsz", "arcp"}


class LinearModel(Model):
    """weight [classes, features] and bias [classes]: the gradient in closed form, the descent fused."""

    path = "fused"
    chunk = 25

    def __init__(self, module: nn.Module, device: str = "cpu") -> None:
        super().__init__(module, device)
        self.weight, self.bias = self.layout.shapes

    @staticmethod
    def fits(module: nn.Module, x: Tensor, device: str) -> bool:
        """Whether the module, whatever it is called, computes x @ weight.T + bias in float32 on a CPU."""
        shapes = [p.shape for p in module.parameters() if p.requires_grad]
        if device != "cpu" or len(shapes) != 2 or len(shapes[0]) != 2 or shapes[1] != shapes[0][:1]:
            return False
        weight, bias = module.parameters()
        flat = x.flatten(1)
        if weight.dtype != torch.float32 or flat.dtype != torch.float32 or flat.shape[1] != weight.shape[1]:
            return False
        with torch.no_grad(), _other_values(weight, bias):
            return torch.allclose(module(x), flat @ weight.T + bias, atol=1e-5)

    def logits(self, rows: Tensor, x: Tensor) -> Tensor:
        views = self.layout.views(rows)
        return torch.baddbmm(views[self.bias][:, None], x.flatten(2), views[self.weight].transpose(1, 2))

    def gradient(self, rows: Tensor, batch: Batch) -> Tensor:
        error = self.logits(rows, batch.x).softmax(-1)
        error.scatter_add_(-1, batch.y[..., None], torch.full_like(error[..., :1], -1.0))
        error = (error * batch.weight[..., None]).transpose(1, 2)
        return torch.cat([(error @ batch.x.flatten(2)).flatten(1), error.sum(-1)], dim=1)

    def descend(self, rows: Tensor, descent: Descent) -> Tensor:
        if descent.direction is not None:
            return super().descend(rows, descent)
        result = rows.clone(memory_format=torch.contiguous_format)
        none = np.zeros((0, 0), np.float32)
        pulled = descent.mu is not None and descent.anchor is not None
        _descend(
            result.numpy(),
            descent.examples.x.flatten(1).numpy(),
            descent.examples.y.numpy(),
            descent.examples.starts[descent.owners].numpy(),
            *descent.batches,
            _array(descent.lr),
            np.float32(descent.weight_decay),
            np.float32(descent.clip),
            _array(descent.mu) if pulled else none[0:0, 0:0].reshape(-1),
            _array(descent.anchor) if pulled else none,
            none if descent.shift is None else _array(descent.shift),
        )
        return result


def compiled() -> bool:
    """Whether the kernels lie in numba's cache, so that the first call is quick."""
    return all(any(Path(f.stats.cache_path or ".").glob(f"*{f.py_func.__name__}-*.nbi")) for f in (_descend, _shuffle))


def _array(tensor: Tensor | None) -> np.ndarray:
    assert tensor is not None
    return tensor.contiguous().float().numpy()


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


@njit(cache=True, fastmath=FAST)
def _transpose(row, classes, features, out):  # type: ignore[no-untyped-def]  # numba infers
    for c in range(classes):
        for j in range(features):
            out[j, c] = row[c * features + j]
        out[features, c] = row[classes * features + c]


@njit(cache=True, fastmath=FAST)
def _softmax_error(z, power, label, count, classes):  # type: ignore[no-untyped-def]  # numba infers
    """Logits -> (softmax - one-hot) / count, in place. exp is 2^whole * polynomial(fraction), which vectorises."""
    width = z.shape[0]
    for c in range(classes, width):
        z[c] = np.float32(-1e30)
    top = np.full(8, np.float32(-1e30), np.float32)
    for block in range(0, width, 8):
        for lane in range(8):
            top[lane] = z[block + lane] if z[block + lane] > top[lane] else top[lane]
    largest = top[0]
    for lane in range(1, 8):
        largest = top[lane] if top[lane] > largest else largest
    scale = power.view(np.float32)
    for c in range(width):
        t = (z[c] - largest) * np.float32(1.4426950408889634)
        t = np.float32(-126.0) if t < np.float32(-126.0) else t
        whole = np.floor(t)
        power[c] = (np.int32(whole) + np.int32(127)) << np.int32(23)
        f = t - whole
        p = np.float32(1.535336188319500e-4)
        p = p * f + np.float32(1.339887440266574e-3)
        p = p * f + np.float32(9.618437357674640e-3)
        p = p * f + np.float32(5.550332471162809e-2)
        p = p * f + np.float32(2.402264791363012e-1)
        p = p * f + np.float32(6.931472028550421e-1)
        z[c] = p * f + np.float32(1.0)
    total = np.float32(0.0)
    for c in range(classes):
        z[c] *= scale[c]
        total += z[c]
    share = np.float32(1.0) / (total * np.float32(count))
    for c in range(classes):
        z[c] *= share
    for c in range(classes, width):
        z[c] = np.float32(0.0)
    z[label] -= np.float32(1.0) / np.float32(count)


@njit(cache=True, fastmath=FAST)
def _descend(rows, x, y, starts, positions, counts, steps, lr, weight_decay, clip, mu, anchor, shift):  # type: ignore[no-untyped-def]  # numba infers
    features = x.shape[1]
    classes = rows.shape[1] // (features + 1)
    # Padded, so that every inner loop is whole vectors: classes to 8 lanes, features (and bias) and batch to blocks of 4.
    width = (classes + 7) // 8 * 8
    height = (features + 1 + 3) // 4 * 4
    weights = np.zeros((height, width), np.float32)
    gradient = np.zeros((height, width), np.float32)
    home = np.zeros((height, width), np.float32)
    push = np.zeros((height, width), np.float32)
    tall = (positions.shape[2] + 3) // 4 * 4
    inputs = np.zeros((tall, height), np.float32)
    errors = np.zeros((tall, width), np.float32)
    power = np.zeros(width, np.int32)
    w, g, h, p = weights.reshape(-1), gradient.reshape(-1), home.reshape(-1), push.reshape(-1)
    for i in range(rows.shape[0]):
        _transpose(rows[i], classes, features, weights)
        if len(mu):
            _transpose(anchor[i], classes, features, home)
        if len(shift):
            _transpose(shift[i], classes, features, push)
        for step in range(steps[i]):
            count = counts[i, step]
            for b in range(tall):
                u = inputs[b]
                z = errors[b]
                z[:] = np.float32(0.0)
                if b >= count:
                    u[:] = np.float32(0.0)
                    continue
                example = starts[i] + positions[i, step, b]
                source = x[example]
                for j in range(features):
                    u[j] = source[j]
                u[features] = np.float32(1.0)
                for j in range(0, height, 4):
                    u0, u1, u2, u3 = u[j], u[j + 1], u[j + 2], u[j + 3]
                    w0, w1, w2, w3 = weights[j], weights[j + 1], weights[j + 2], weights[j + 3]
                    for c in range(width):
                        z[c] += u0 * w0[c] + u1 * w1[c] + u2 * w2[c] + u3 * w3[c]
                _softmax_error(z, power, y[example], count, classes)
            g[:] = np.float32(0.0)
            for b in range(0, count, 4):
                u0, u1, u2, u3 = inputs[b], inputs[b + 1], inputs[b + 2], inputs[b + 3]
                z0, z1, z2, z3 = errors[b], errors[b + 1], errors[b + 2], errors[b + 3]
                for j in range(features + 1):
                    v0, v1, v2, v3 = u0[j], u1[j], u2[j], u3[j]
                    out = gradient[j]
                    for c in range(width):
                        out[c] += v0 * z0[c] + v1 * z1[c] + v2 * z2[c] + v3 * z3[c]
            if len(mu):
                pull = mu[i]
                for q in range(len(g)):
                    g[q] += pull * (w[q] - h[q])
            if len(shift):
                for q in range(len(g)):
                    g[q] += p[q]
            rate = lr[i]
            if clip < np.inf:
                squares = np.float32(0.0)
                for q in range(len(g)):
                    squares += g[q] * g[q]
                norm = np.sqrt(squares)
                if norm + np.float32(1e-6) > clip:
                    rate *= clip / (norm + np.float32(1e-6))
            decay = np.float32(1.0) - lr[i] * weight_decay
            for q in range(len(g)):
                w[q] = decay * w[q] - rate * g[q]
        for c in range(classes):
            for j in range(features):
                rows[i, c * features + j] = weights[j, c]
            rows[i, classes * features + c] = weights[features, c]
