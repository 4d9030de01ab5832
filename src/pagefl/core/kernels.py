"""Compiled loops for linear-softmax models: one client's whole local training, and the judging of many models.

Rows hold weight [classes, features] and then bias [classes]. In training the lanes of a vector are classes, so weights are
turned around and padded; in judging they are examples.
"""
# mypy: disable-error-code="no-untyped-def"
# numba infers the types

import numpy as np
from numba import njit

# No "nnan" and no "ninf": a model that diverged must still be seen to have diverged.
FAST = {"contract", "reassoc", "nsz", "arcp"}


@njit(cache=True, fastmath=FAST)
def transpose(row, classes, features, out):
    for c in range(classes):
        for j in range(features):
            out[j, c] = row[c * features + j]
        out[features, c] = row[classes * features + c]


@njit(cache=True, fastmath=FAST)
def exponentials(z, largest, power):
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
def softmax_error(z, power, largest, label, count, classes):
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
    exponentials(z, largest, power)
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
def score(rows, x, y, starts, sizes, with_loss, losses, hits):
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
                    exponentials(zc, best[:m], power[:m])
                    for e in range(m):
                        total[e] += zc[e]
                for e in range(m):
                    loss += np.log(total[e]) + best[e] - own[e]
        losses[i], hits[i] = loss / sizes[i], right / sizes[i]


@njit(cache=True, fastmath=FAST)
def untranspose(weights, classes, features, row):
    for c in range(classes):
        for j in range(features):
            row[c * features + j] = weights[j, c]
        row[classes * features + c] = weights[features, c]


@njit(cache=True, fastmath=FAST)
def forward(u, weights, z):
    """z += u @ weights"""
    for j in range(0, weights.shape[0], 4):
        u0, u1, u2, u3 = u[j], u[j + 1], u[j + 2], u[j + 3]
        w0, w1, w2, w3 = weights[j], weights[j + 1], weights[j + 2], weights[j + 3]
        for c in range(len(z)):
            z[c] += u0 * w0[c] + u1 * w1[c] + u2 * w2[c] + u3 * w3[c]


@njit(cache=True, fastmath=FAST)
def backward(inputs, errors, count, features, gradient):
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
def step(w, g, lr, weight_decay, clip):
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
def descend(
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
        transpose(rows[i], classes, features, weights)
        if len(anchor):
            transpose(anchor[i], classes, features, home)
        if len(shift):
            transpose(shift[i], classes, features, push)
        if len(top):
            transpose(top[i], classes, features, above)
        for at in range(steps[i]):
            count = counts[i, at]
            for b in range(tall):
                u = inputs[b]
                if b >= count:
                    u[:] = np.float32(0.0)
                    errors[b] = np.float32(0.0)
                    top_errors[b] = np.float32(0.0)
                    continue
                source = x[starts[i] + positions[i, at, b]]
                for j in range(features):
                    u[j] = source[j]
                u[features] = np.float32(1.0)
            for _ in range(repeats):
                for b in range(count):
                    label = y[starts[i] + positions[i, at, b]]
                    z = errors[b]
                    z[:] = np.float32(0.0)
                    forward(inputs[b], weights, z)
                    if len(top):
                        t = top_errors[b]
                        t[:] = z
                        forward(inputs[b], above, t)
                        softmax_error(t, power, largest, label, count, classes)
                    if len(offset):
                        for c in range(classes):
                            z[c] += offset[i, c]
                    softmax_error(z, power, largest, label, count, classes)
                backward(inputs, errors, count, features, gradient)
                if len(mu):
                    for q in range(len(g)):
                        g[q] += mu[i] * (w[q] - h[q])
                if len(shift):
                    for q in range(len(g)):
                        g[q] += p[q]
                step(w, g, lr[i], weight_decay, clip)
                if len(top):
                    backward(inputs, top_errors, count, features, gradient)
                    step(a, g, lr[i], weight_decay, clip)
            if len(follow):
                for q in range(len(h)):
                    h[q] += follow[i] * (w[q] - h[q])
        untranspose(weights, classes, features, rows[i])
        if len(anchor):
            untranspose(home, classes, features, anchor[i])
        if len(top):
            untranspose(above, classes, features, top[i])
