"""Every option of local SGD, on every path of a model, against a plain loop over clients."""

import numpy as np
import pytest
import torch
from federations import CLASSES, FEATURES, PATHS, client, linear
from torch.func import functional_call

from pagefl import UserError
from pagefl.core import rng
from pagefl.core.algorithm import Facts
from pagefl.core.examples import Examples
from pagefl.core.layout import Layout
from pagefl.core.training.batches import draw
from pagefl.core.training.linear import LinearModel
from pagefl.core.training.options import Options
from pagefl.core.training.stack import Stack, Training

SEED, SIZES, N = 3, (5, 11, 8), 3
LR, EPOCHS = torch.tensor([0.3, 0.1, 0.2]), torch.tensor([2, 1, 3])
LONGER = {"sgd": 1, "deltasgd": 10}  # so that curvature bounds some steps
TRAINING = Training(SEED, 0.1, batch_size=4, weight_decay=0.02, clip=0.7)
EXAMPLES = Examples.of([client(size, i) for i, size in enumerate(SIZES)])


def noise(name: str, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.stream(SEED, name).normal(size=shape)).float()


def with_anchor(width: int) -> dict:
    return {"anchor": noise("anchor", N, width)}


def pull_back(rows: torch.Tensor, gradient: torch.Tensor, who: torch.Tensor) -> torch.Tensor:
    return 0.5 * gradient + (0.1 + 0.1 * who[:, None]) * rows  # another one for each row of the stack


CASES = {  # by the width of a row and its head
    "nothing": lambda width, head: {},
    "lr": lambda width, head: {"lr": torch.tensor([0.05, 0.2, 3.0])},
    "epochs": lambda width, head: {"epochs": torch.tensor([1, 3, 2])},
    "mu": lambda width, head: {"mu": 0.3, **with_anchor(width)},
    "mu of each": lambda width, head: {"mu": torch.tensor([0.1, 0.5, 0.9]), **with_anchor(width)},
    "shift": lambda width, head: {"shift": 0.1 * noise("shift", N, width)},
    "direction": lambda width, head: {"direction": pull_back},
    "head alone": lambda width, head: {"columns": head},
    "columns that cut a parameter": lambda width, head: {"columns": slice(3, width - 5)},
    "columns from the end": lambda width, head: {"columns": slice(-7, None)},
    "offset": lambda width, head: {"offset": noise("offset", N, CLASSES)},
    "part": lambda width, head: {"part": (0.3, 1.0)},
    "repeats": lambda width, head: {"repeats": 3},
    "anchor that moves": lambda width, head: {
        "anchor_rate": torch.tensor([0.1, 0.2, 0.3]), **with_anchor(width)
    },
    "top": lambda width, head: {"top": 0.3 * noise("top", N, head.stop - head.start)},
    "as pFedMe": lambda width, head: {
        "mu": 0.4, "repeats": 2, "anchor_rate": torch.tensor([0.1, 0.2, 0.3]), **with_anchor(width)
    },
    "as Fed-ROD": lambda width, head: {
        "offset": noise("offset", N, CLASSES), "top": 0.3 * noise("top", N, head.stop - head.start)
    },
    "columns, mu and shift": lambda width, head: {
        "columns": slice(2, width - 3), "mu": 0.3, "shift": 0.1 * noise("shift", N, width),
        **with_anchor(width),
    },
}  # fmt: skip


class Moving:
    """One vector that SGD moves, by steps of size lr or of its own."""

    def __init__(self, lr: float, momentum: float, optimiser: str) -> None:
        self.lr, self.momentum, self.adapts = float(lr), momentum, optimiser == "deltasgd"
        self.velocity, self.before, self.theta, self.length = 0.0, None, 1.0, 0.0

    def step(self, w: torch.Tensor, gradient) -> torch.Tensor:
        direction, decay = gradient(w), TRAINING.weight_decay
        if self.adapts and self.before is not None:
            turn = (direction + decay * w) - (gradient(self.before) + decay * self.before)
            bounds = (
                2.0 * (w - self.before).norm() / (2 * turn.norm()),
                (1 + 0.1 * self.theta) ** 0.5 * self.lr,
            )
            self.theta, self.lr = float(min(bounds)) / self.lr, float(min(bounds))
        self.before, self.length = w.clone(), self.length + self.lr
        clipped = direction * min(1.0, TRAINING.clip / (float(direction.norm()) + 1e-6))
        self.velocity = self.momentum * self.velocity + clipped + decay * w
        return w - self.lr * self.velocity


def plain(
    module, rows: torch.Tensor, options: dict, momentum: float = 0.0, optimiser: str = "sgd"
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor]:
    """One client after the other, one example batch after the other, in double precision."""
    layout, rows = Layout(module), rows.double()
    anchor, top = (options[name].double() if name in options else None for name in ("anchor", "top"))
    trained = range(*options.get("columns", slice(None)).indices(layout.width))
    columns = slice(trained.start, trained.stop)
    lrs, epochs = options.get("lr", LR * LONGER[optimiser]), options.get("epochs", EPOCHS)
    mu, lengths = torch.as_tensor(options.get("mu", 0.0)).expand(N), []

    def slope(row, x, y, offset):
        leaf = row.detach().requires_grad_()
        logits = functional_call(module, layout.views(leaf), (x,)) + offset
        return torch.autograd.grad(torch.nn.functional.cross_entropy(logits, y), leaf)[0]

    for i in range(N):
        x, y = EXAMPLES.client(i)
        own, head = (Moving(lrs[i], momentum, optimiser) for _ in range(2))
        for chosen in batches(i, len(y), int(epochs[i]), options.get("part")):
            batch = x[chosen].double(), y[chosen]

            def with_part(where, part, i=i):
                whole = rows[i].clone()
                whole[where] = part
                return whole

            def direction(part, i=i, batch=batch, with_part=with_part):
                row = with_part(columns, part)
                found = slope(row, *batch, options["offset"][i] if "offset" in options else 0.0)
                if "direction" in options:
                    found = options["direction"](row[None], found[None], torch.tensor([i]))[0]
                elif anchor is not None:
                    found = found + mu[i] * (row - anchor[i])
                if "shift" in options:
                    found = found + options["shift"][i]
                return found[columns]

            for _ in range(options.get("repeats", 1)):
                if top is not None:
                    last = slice(layout.width - top.shape[1], layout.width)
                    # the row is held fixed, where it is before its own step
                    fixed = rows[i, last].clone()

                    def personal(part, batch=batch, last=last, fixed=fixed, with_part=with_part):
                        return slope(with_part(last, fixed + part), *batch, 0.0)[last]

                    top[i] = head.step(top[i].clone(), personal)
                rows[i, columns] = own.step(rows[i, columns].clone(), direction)
            if "anchor_rate" in options:
                anchor[i] += options["anchor_rate"][i] * (rows[i] - anchor[i])
        lengths.append(own.length)
    return rows, anchor, top, torch.tensor(lengths).double()


def batches(i: int, size: int, epochs: int, part: tuple[float, float] | None) -> list[np.ndarray]:
    """Only the order of the examples is taken from the engine's random streams."""
    pool = np.arange(size)
    if part is not None:
        whole = draw(
            np.array([rng.key(SEED, "part", 1, i)], np.uint64), np.array([size]), np.array([1]), size
        )
        pool = whole.positions[0, 0][round(size * part[0]) : round(size * part[1])]
    key = np.array([rng.key(SEED, "batches", 1, 0, i)], np.uint64)
    index, counts, _ = draw(key, np.array([len(pool)]), np.array([epochs]), TRAINING.batch_size)
    return [pool[places[:count]] for places, count in zip(index[0], counts[0], strict=True)]


def stack(model, momentum: float = 0.0, optimiser: str = "sgd") -> Stack:
    counts = torch.stack([EXAMPLES.client(i)[1].bincount(minlength=CLASSES) for i in range(N)])
    facts = Facts(EXAMPLES.sizes, counts, 8.0)
    return Stack(
        model,
        EXAMPLES,
        TRAINING._replace(momentum=momentum, optimiser=optimiser),
        1,
        torch.arange(N),
        np.arange(N),
        {},
        {},
        facts,
        LR * LONGER[optimiser],
        EPOCHS,
    )


@pytest.mark.parametrize(("path", "make"), PATHS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("momentum", "optimiser"), [(0.0, "sgd"), (0.9, "sgd"), (0.0, "deltasgd")])
def test_every_option_on_every_path(path, make, case, momentum, optimiser):
    with rng.torch_stream(1, "module"):
        module = make()
    layout = Layout(module)
    rows = layout.row(module) + 0.1 * noise("rows", N, layout.width)
    options = CASES[case](layout.width, layout.head)
    expected = plain(module, rows, options, momentum, optimiser)
    found = stack(path(module), momentum, optimiser).descend(rows, **options)
    lost = 1 if optimiser == "sgd" else 10  # digits, where near gradients are subtracted
    for got, wanted in zip(found, expected, strict=True):
        if wanted is not None:
            torch.testing.assert_close(got.double(), wanted, rtol=lost * 1e-4, atol=lost * 1e-5)


@pytest.mark.parametrize(("path", "make"), PATHS)
def test_a_gradient_is_zero_outside_its_columns(path, make):
    module = make()
    layout = Layout(module)
    rows = noise("rows", 1, layout.width)
    x, y = client(6, 1)
    batch = stack(path(module)).model
    from pagefl.core.training.descent import Batch

    whole = batch.gradient(rows, Batch(x[None], y[None], torch.full((1, 6), 1 / 6)))
    cut = batch.gradient(rows, Batch(x[None], y[None], torch.full((1, 6), 1 / 6)), slice(2, FEATURES + 3))
    assert torch.allclose(cut[:, 2 : FEATURES + 3], whole[:, 2 : FEATURES + 3], atol=1e-7)
    assert not cut[:, :2].any()
    assert not cut[:, FEATURES + 3 :].any()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mu": 0.1}, "need an anchor"),
        ({"anchor_rate": LR}, "need an anchor"),
        ({"direction": pull_back, "shift": LR}, "direction replaces mu and shift"),
        ({"part": (0.5, 0.2)}, "part = (0.5, 0.2)"),
        ({"repeats": 0}, "repeats = 0"),
        ({"optimiser": "adam"}, "optimiser = adam: expected sgd or deltasgd"),
    ],
)
def test_contradictions_are_refused(options, words):
    with pytest.raises(UserError) as refusal:
        Options(**options)
    assert words in str(refusal.value)


def test_an_unknown_option_is_named():
    with pytest.raises(UserError, match="momentun"):
        stack(LinearModel(linear())).train(noise("rows", N, 28), momentun=0.9)
