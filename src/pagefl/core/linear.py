"""Linear-softmax models: a whole local training in one compiled kernel, a client's weights never leaving the L1 cache."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from numba import njit
from torch import Tensor, nn

from .batches import Integers, _shuffle
from .descent import Batch, Descended, Descent
from .evaluate import Scores
from .examples import Examples
from .model import Model

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

    def gradient(self, rows: Tensor, batch: Batch, columns: slice | None = None) -> Tensor:
        logits = self.logits(rows, batch.x)
        error = (logits if batch.offset is None else logits + batch.offset[:, None]).softmax(-1)
        error.scatter_add_(-1, batch.y[..., None], torch.full_like(error[..., :1], -1.0))
        error = (error * batch.weight[..., None]).transpose(1, 2)
        return torch.cat([(error @ batch.x.flatten(2)).flatten(1), error.sum(-1)], dim=1)

    def score(self, rows: Tensor, examples: Examples, owners: Tensor) -> Scores:
        starts, sizes = (part[owners].numpy() for part in (examples.starts, examples.sizes))
        return self._score(rows, examples, starts, sizes, with_loss=True)

    def accuracies(self, rows: Tensor, examples: Examples) -> npt.NDArray[np.float64]:
        everything = np.full(len(rows), len(examples.y))
        return self._score(rows, examples, np.zeros_like(everything), everything, with_loss=False).accuracy

    def _score(self, rows: Tensor, examples: Examples, starts: Integers, sizes: Integers, *, with_loss: bool) -> Scores:
        scores = Scores(np.empty(len(starts)), np.empty(len(starts)))
        _score(_array(rows, 2), examples.by_feature.numpy(), examples.y.numpy(), starts, sizes, with_loss, *scores)
        return scores

    def descend(self, rows: Tensor, descent: Descent) -> Descended:
        if descent.direction is not None:
            return super().descend(rows, descent)
        fresh, anchor, top = (_array(part, 2, copy=True) for part in (rows, descent.anchor, descent.top))
        _descend(
            fresh,
            descent.examples.x.flatten(1).numpy(),
            descent.examples.y.numpy(),
            descent.examples.starts[descent.owners].numpy(),
            *descent.batches,
            _array(descent.lr, 1),
            np.float32(descent.weight_decay),
            np.float32(descent.clip),
            _array(descent.mu, 1),
            anchor,
            _array(descent.shift, 2),
            _array(descent.offset, 2),
            descent.repeats,
            _array(descent.follow, 1),
            top,
        )
        moved = (torch.from_numpy(part) if len(part) else None for part in (anchor, top))
        return Descended(torch.from_numpy(fresh), *moved)


def compiled() -> bool:
    """Whether the kernels lie in numba's cache, so that the first call is quick."""
    return all(any(Path(f.stats.cache_path or ".").glob(f"*{f.py_func.__name__}-*.nbi")) for f in (_descend, _score, _shuffle))


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


@njit(cache=True, fastmath=FAST)
def _transpose(row, classes, features, out):  # type: ignore[no-untyped-def]  # numba infers
    for c in range(classes):
        for j in range(features):
            out[j, c] = row[c * features + j]
        out[features, c] = row[classes * features + c]


@njit(cache=True, fastmath=FAST)
def _exponentials(z, largest, power):  # type: ignore[no-untyped-def]  # numba infers
    """z -> exp(z - largest), in place: 2^whole * polynomial(fraction), which vectorises where a call to exp does not."""
    scale = power.view(np.float32)
    for c in range(len(z)):
        t = (z[c] - largest[c]) * np.float32(1.4426950408889634)
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
    for c in range(len(z)):
        z[c] *= scale[c]


@njit(cache=True, fastmath=FAST)
def _softmax_error(z, power, largest, label, count, classes):  # type: ignore[no-untyped-def]  # numba infers
    """Logits -> (softmax - one-hot) / count, in place."""
    width = len(z)
    for c in range(classes, width):
        z[c] = np.float32(-1e30)
    lanes = largest[:8]
    lanes[:] = z[:8]
    for block in range(8, width, 8):
        for lane in range(8):
            lanes[lane] = z[block + lane] if z[block + lane] > lanes[lane] else lanes[lane]
    top = lanes[0]
    for lane in range(1, 8):
        top = lanes[lane] if lanes[lane] > top else top
    largest[:] = top
    _exponentials(z, largest, power)
    total = np.float32(0.0)
    for c in range(classes):
        total += z[c]
    share = np.float32(1.0) / (total * np.float32(count))
    for c in range(classes):
        z[c] *= share
    for c in range(classes, width):
        z[c] = np.float32(0.0)
    z[label] -= np.float32(1.0) / np.float32(count)


@njit(cache=True, fastmath=FAST)
def _score(rows, x, y, starts, sizes, with_loss, losses, hits):  # type: ignore[no-untyped-def]  # numba infers
    """Mean loss and accuracy of row i, or of the only row, on the sizes[i] examples from starts[i].

    x is [features, examples]: the lanes of a vector are examples here, 64 at a time.
    """
    features = x.shape[0]
    classes = rows.shape[1] // (features + 1)
    z = np.zeros((classes, 64), np.float32)
    best, total, power = np.zeros(64, np.float32), np.zeros(64, np.float32), np.zeros(64, np.int32)
    own, answer = np.zeros(64, np.float32), np.zeros(64, np.int32)
    for i in range(len(starts)):
        row = rows[min(i, len(rows) - 1)]
        end = starts[i] + sizes[i]
        loss, right = 0.0, 0
        for start in range(starts[i], end, 64):
            m = min(64, end - start)
            for c in range(classes):
                zc = z[c, :m]
                zc[:] = row[classes * features + c]
                weights = row[c * features : (c + 1) * features]
                whole = features // 4 * 4
                for j in range(0, whole, 4):
                    w0, w1, w2, w3 = weights[j], weights[j + 1], weights[j + 2], weights[j + 3]
                    x0, x1 = x[j, start : start + m], x[j + 1, start : start + m]
                    x2, x3 = x[j + 2, start : start + m], x[j + 3, start : start + m]
                    for e in range(m):
                        zc[e] += w0 * x0[e] + w1 * x1[e] + w2 * x2[e] + w3 * x3[e]
                for j in range(whole, features):
                    w0, x0 = weights[j], x[j, start : start + m]
                    for e in range(m):
                        zc[e] += w0 * x0[e]
            best[:m] = z[0, :m]
            answer[:] = 0
            for c in range(1, classes):
                zc = z[c]
                for e in range(m):
                    better = zc[e] > best[e]  # of equals the first, as argmax has it
                    best[e] = zc[e] if better else best[e]
                    answer[e] = c if better else answer[e]
            for e in range(m):
                own[e] = z[y[start + e], e]
                right += answer[e] == y[start + e]
            if with_loss:
                total[:] = np.float32(0.0)
                for c in range(classes):
                    zc = z[c, :m]
                    _exponentials(zc, best[:m], power[:m])
                    for e in range(m):
                        total[e] += zc[e]
                for e in range(m):
                    loss += np.log(total[e]) + best[e] - own[e]
        losses[i], hits[i] = loss / sizes[i], right / sizes[i]


@njit(cache=True, fastmath=FAST)
def _untranspose(weights, classes, features, row):  # type: ignore[no-untyped-def]  # numba infers
    for c in range(classes):
        for j in range(features):
            row[c * features + j] = weights[j, c]
        row[classes * features + c] = weights[features, c]


@njit(cache=True, fastmath=FAST)
def _forward(u, weights, z):  # type: ignore[no-untyped-def]  # numba infers
    """z += u @ weights"""
    for j in range(0, weights.shape[0], 4):
        u0, u1, u2, u3 = u[j], u[j + 1], u[j + 2], u[j + 3]
        w0, w1, w2, w3 = weights[j], weights[j + 1], weights[j + 2], weights[j + 3]
        for c in range(len(z)):
            z[c] += u0 * w0[c] + u1 * w1[c] + u2 * w2[c] + u3 * w3[c]


@njit(cache=True, fastmath=FAST)
def _backward(inputs, errors, count, features, gradient):  # type: ignore[no-untyped-def]  # numba infers
    """gradient = inputs.T @ errors"""
    gradient[:] = np.float32(0.0)
    for b in range(0, count, 4):
        u0, u1, u2, u3 = inputs[b], inputs[b + 1], inputs[b + 2], inputs[b + 3]
        z0, z1, z2, z3 = errors[b], errors[b + 1], errors[b + 2], errors[b + 3]
        for j in range(features + 1):
            v0, v1, v2, v3 = u0[j], u1[j], u2[j], u3[j]
            out = gradient[j]
            for c in range(len(out)):
                out[c] += v0 * z0[c] + v1 * z1[c] + v2 * z2[c] + v3 * z3[c]


@njit(cache=True, fastmath=FAST)
def _step(w, g, lr, weight_decay, clip):  # type: ignore[no-untyped-def]  # numba infers
    rate = lr
    if clip < np.inf:
        squares = np.float32(0.0)
        for q in range(len(g)):
            squares += g[q] * g[q]
        norm = np.sqrt(squares) + np.float32(1e-6)
        if norm > clip:
            rate *= clip / norm
    decay = np.float32(1.0) - lr * weight_decay
    for q in range(len(g)):
        w[q] = decay * w[q] - rate * g[q]


@njit(cache=True, fastmath=FAST)
def _descend(  # type: ignore[no-untyped-def]  # numba infers
    rows, x, y, starts, positions, counts, steps, lr, weight_decay, clip, mu, anchor, shift, offset, repeats, follow, top
):
    features = x.shape[1]
    classes = rows.shape[1] // (features + 1)
    # Padded, so that every inner loop is whole vectors: classes to 8 lanes, features (and bias) and batch to blocks of 4.
    width = (classes + 7) // 8 * 8
    height = (features + 1 + 3) // 4 * 4
    tall = (positions.shape[2] + 3) // 4 * 4
    weights = np.zeros((height, width), np.float32)
    gradient, home, push, above = np.zeros_like(weights), np.zeros_like(weights), np.zeros_like(weights), np.zeros_like(weights)
    inputs = np.zeros((tall, height), np.float32)
    errors = np.zeros((tall, width), np.float32)
    top_errors = np.zeros((tall, width), np.float32)
    power, largest = np.zeros(width, np.int32), np.zeros(width, np.float32)
    w, g, h, p, a = weights.reshape(-1), gradient.reshape(-1), home.reshape(-1), push.reshape(-1), above.reshape(-1)
    for i in range(rows.shape[0]):
        _transpose(rows[i], classes, features, weights)
        if len(anchor):
            _transpose(anchor[i], classes, features, home)
        if len(shift):
            _transpose(shift[i], classes, features, push)
        if len(top):
            _transpose(top[i], classes, features, above)
        for step in range(steps[i]):
            count = counts[i, step]
            for b in range(tall):
                u = inputs[b]
                if b >= count:
                    u[:] = np.float32(0.0)
                    errors[b] = np.float32(0.0)
                    top_errors[b] = np.float32(0.0)
                    continue
                source = x[starts[i] + positions[i, step, b]]
                for j in range(features):
                    u[j] = source[j]
                u[features] = np.float32(1.0)
            for _ in range(repeats):
                for b in range(count):
                    label = y[starts[i] + positions[i, step, b]]
                    z = errors[b]
                    z[:] = np.float32(0.0)
                    _forward(inputs[b], weights, z)
                    if len(top):
                        t = top_errors[b]
                        t[:] = z
                        _forward(inputs[b], above, t)
                        _softmax_error(t, power, largest, label, count, classes)
                    if len(offset):
                        for c in range(classes):
                            z[c] += offset[i, c]
                    _softmax_error(z, power, largest, label, count, classes)
                _backward(inputs, errors, count, features, gradient)
                if len(mu):
                    for q in range(len(g)):
                        g[q] += mu[i] * (w[q] - h[q])
                if len(shift):
                    for q in range(len(g)):
                        g[q] += p[q]
                _step(w, g, lr[i], weight_decay, clip)
                if len(top):
                    _backward(inputs, top_errors, count, features, gradient)
                    _step(a, g, lr[i], weight_decay, clip)
            if len(follow):
                for q in range(len(h)):
                    h[q] += follow[i] * (w[q] - h[q])
        _untranspose(weights, classes, features, rows[i])
        if len(anchor):
            _untranspose(home, classes, features, anchor[i])
        if len(top):
            _untranspose(above, classes, features, top[i])
