"""A plan against autograd in float64: its gradients are no farther from the truth than torch's own in
float32."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numba import njit
from torch import nn

from pagefl.core.evaluate import cross_entropy
from pagefl.core.examples import Examples
from pagefl.core.layout import Layout
from pagefl.core.training import batches as batching
from pagefl.core.training.descent import Batch, Descent
from pagefl.core.training.model import RowModel
from pagefl.core.training.options import Options
from pagefl.core.training.plan import blas, kept, loops, operations, tiles
from pagefl.core.training.plan.model import PlanModel
from pagefl.core.training.plan.trace import Unplanned
from pagefl.models.resnet import resnet18
from pagefl.runtime import paths

pytestmark = pytest.mark.xdist_group("plans")  # one worker compiles
CLASSES = 5


class Residual(nn.Module):
    """A user's own network: other sizes, average pooling, a residual and a bias."""

    def __init__(self, channels: int = 6) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.norm = nn.GroupNorm(3, channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.third = nn.Conv2d(channels, channels, 1)
        self.pool = nn.AvgPool2d(2)
        self.head = nn.Linear(channels * 16, CLASSES)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        x = self.pool(x + torch.relu(self.second(x)))
        y = self.third(x)
        y += x
        return self.head(y.flatten(1))


class Branches(nn.Module):
    """One result that three others read, and a norm before its convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 8, 3, stride=2)
        self.norm = nn.GroupNorm(2, 8, affine=False)
        self.left, self.right = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 5, padding=2)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        x = self.first(x.float() / 255)
        y = nn.functional.relu(self.norm(x))
        x = self.left(y) + self.right(y)
        return self.head((x + y).mean((2, 3)))


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 7)
        self.body, self.norm, self.head = nn.Linear(7 * 6, 16), nn.LayerNorm(16), nn.Linear(16, CLASSES)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.body(self.embedding(x.long()).flatten(1)))))


def cnn(pool=nn.MaxPool2d) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 5), nn.ReLU(), pool(2), nn.Conv2d(8, 9, 3), pool(3, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(9 * 5 * 5, 12), nn.ReLU(), nn.Dropout(0.0), nn.Linear(12, CLASSES),
    )  # fmt: skip


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3 * 4 * 4, 10), nn.LayerNorm(10), nn.ReLU(), nn.Linear(10, CLASSES)
    )


def images(n: int, side: int = 32, channels: int = 3) -> torch.Tensor:
    return torch.randint(
        256, (n, channels, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(n)
    )


def floats(n: int, side: int, channels: int = 3) -> torch.Tensor:
    return torch.randn(n, channels, side, side, generator=torch.Generator().manual_seed(n))


MODULES = {
    "resnet": (lambda: resnet18(CLASSES, width=8), images),
    "resnet, odd width": (lambda: resnet18(CLASSES, width=6), images),
    "resnet, small stem": (lambda: resnet18(CLASSES, stem="small", width=4), lambda n: images(n, 16)),
    "resnet, odd images": (lambda: resnet18(CLASSES, width=4), lambda n: images(n, 27)),
    "cnn": (cnn, lambda n: floats(n, 28)),
    "cnn, average pooling": (lambda: cnn(nn.AvgPool2d), lambda n: floats(n, 28)),
    "residual": (Residual, lambda n: floats(n, 8)),
    "branches": (Branches, lambda n: images(n, 13, 2)),
    "text": (Text, lambda n: torch.randint(20, (n, 6), generator=torch.Generator().manual_seed(n))),
    "mlp": (mlp, lambda n: floats(n, 4)),
    "mlp on numbers": (
        lambda: nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, CLASSES)),
        lambda n: torch.randn(n, 7, generator=torch.Generator().manual_seed(n)),
    ),
}


def made(make, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return make()


def batch_of(x: torch.Tensor, dtype=torch.float32, offset=None) -> Batch:
    y = (torch.arange(len(x)) * 3) % CLASSES
    return Batch(x[None], y[None], torch.full((1, len(x)), 1 / len(x), dtype=dtype), offset)


def no_farther(ours: torch.Tensor, theirs: torch.Tensor, truth: torch.Tensor, digits: float) -> None:
    """Three times torch's own distance from the truth, and a few units in the last place of the whole: both
    distances are sums of a few roundings, and so partly luck."""
    unit = digits * float(truth.norm())
    assert float((ours - truth).norm()) <= 3 * float((theirs - truth).norm()) + unit


def compare(
    module: nn.Module, x: torch.Tensor, offset: torch.Tensor | None = None, digits: float = 4e-7
) -> None:
    plan, rows = PlanModel(module, x), RowModel(module)
    exact = RowModel(copy.deepcopy(module).double())
    row = plan.layout.row(module)[None]
    wide = x.double() if x.is_floating_point() else x
    truth = batch_of(wide, torch.float64, None if offset is None else offset.double())
    no_farther(
        plan.gradient(row, batch_of(x, offset=offset)),
        rows.gradient(row, batch_of(x, offset=offset)),
        exact.gradient(row.double(), truth),
        digits,
    )
    no_farther(
        plan.logits(row, x[None]), rows.logits(row, x[None]), exact.logits(row.double(), wide[None]), digits
    )


class FewChannels(nn.Module):
    """Convolutions that are tiled. Two of them read the same maps, so that one adds its gradient."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, padding: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, inputs, 3, padding=1)
        self.left, self.right = (
            nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False) for _ in range(2)
        )
        self.head = nn.LazyLinear(CLASSES)

    def forward(self, x):
        x = torch.relu(self.first(x))
        return self.head((torch.relu(self.left(x)) + self.right(x)).flatten(1))


@pytest.mark.parametrize("count", [1, 3, 4, 9])
@pytest.mark.parametrize(
    ("inputs", "outputs", "kernel", "stride", "padding"),
    [
        (24, 24, 3, 1, 1),
        (16, 32, 3, 2, 1),
        (32, 24, 5, 1, 0),
        (24, 16, 1, 2, 0),
        (16, 16, 2, 1, 3),
        (8, 8, 3, 1, 1),
        (8, 16, 3, 2, 1),
        (16, 8, 5, 1, 2),
    ],
)
def test_few_channels(inputs, outputs, kernel, stride, padding, count):
    assert tiles.fits(inputs)
    assert tiles.fits(outputs)
    module, x = made(lambda: FewChannels(inputs, outputs, kernel, stride, padding)), floats(count, 7)
    module(x)  # the head learns its size
    compare(module, x)


@pytest.mark.parametrize("count", [1, 3, 10])
@pytest.mark.parametrize("name", MODULES)
def test_gradients_and_logits(name, count):
    make, examples = MODULES[name]
    module = made(make)
    if name != "branches":  # its forward converts to float32, also in float64
        compare(module, examples(count), torch.linspace(-1, 1, CLASSES)[None])
        return
    plan, rows = PlanModel(module, examples(count)), RowModel(module)
    row, batch = plan.layout.row(module)[None], batch_of(examples(count))
    torch.testing.assert_close(plan.gradient(row, batch), rows.gradient(row, batch), rtol=1e-4, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(1, 4), st.integers(1, 9)),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.integers(5, 9), st.integers(5, 9)),
    st.sampled_from([1, 2, 3, 7]),
    st.booleans(),
)
@example((2, 4), (3, 2), (2, 1), (3, 0), (7, 5), 3, True)  # tiles of 8, 16 and 24 channels
@example((3, 8), (5, 5), (1, 2), (2, 1), (9, 8), 7, True)
@example((1, 12), (1, 3), (1, 1), (0, 3), (5, 9), 2, True)
def test_any_convolution(channels, kernel, stride, padding, side, count, first):
    """The first convolution of a network takes another way than those after it."""
    inputs, outputs = channels
    torch.manual_seed(sum(kernel) + 7 * sum(stride) + count)
    conv = nn.Conv2d(inputs, 2 * outputs, kernel, stride, padding)
    layers = [conv, nn.GroupNorm(2, 2 * outputs), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    layers.append(nn.Linear(2 * outputs, CLASSES))
    if not first:
        layers = [nn.Conv2d(3, inputs, 1), nn.ReLU(), *layers]
    x = torch.randn(count, inputs if first else 3, *side)
    compare(nn.Sequential(*layers), x, digits=1e-5)  # a norm of few, nearly equal numbers loses some


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([nn.MaxPool2d, nn.AvgPool2d]),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 1),
    st.integers(5, 8),
)
def test_any_pooling(pool, kernel, stride, padding, side):
    torch.manual_seed(kernel + 10 * stride)
    layers = [
        nn.Conv2d(2, 6, 2),
        nn.ReLU(),
        pool(kernel, stride, min(padding, kernel // 2)),
        nn.Conv2d(6, 4, 1),
    ]
    x = torch.randn(3, 2, side, side)
    size = nn.Sequential(*layers)(x).flatten(1).shape[1]
    compare(nn.Sequential(*layers, nn.Flatten(), nn.Linear(size, CLASSES)), x)


def test_a_mean_far_from_zero_costs_no_digits():
    module = made(
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Flatten(), nn.Linear(8 * 36, CLASSES)
        )
    )
    compare(module, floats(5, 8) + 300)


def test_not_a_number_is_not_hidden():
    """Relu and pooling pass it on, as torch's do."""
    module = made(cnn)
    x = floats(3, 28)
    x[1, 0, 5, 5] = torch.nan
    plan = PlanModel(module, x)
    logits = plan.logits(plan.layout.row(module)[None], x[None])[0]
    assert (
        logits.isnan().any(1).tolist()
        == RowModel(module).logits(plan.layout.row(module)[None], x[None])[0].isnan().any(1).tolist()
    )


def test_large_batches_are_taken_in_parts():
    module = made(mlp)
    compare(module, floats(300, 4))


def test_scores_of_owners_side_by_side_and_apart():
    module, x = made(cnn), floats(70, 28)
    y = torch.arange(70) % CLASSES
    examples = Examples(x, y, torch.tensor([0, 10, 33, 34, 70]))
    plan, rows = PlanModel(module, x[:4]), RowModel(module)
    row = plan.layout.row(module)[None]
    for who in ([0, 1, 2, 3], [3, 0], [2]):
        ours, theirs = (model.score(row, examples, torch.tensor(who)) for model in (plan, rows))
        assert ours.accuracy.tolist() == theirs.accuracy.tolist()
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
    three = row + 0.01 * torch.arange(3)[:, None]
    ours, theirs = (model.score(three, examples, torch.tensor([1, 0, 3])) for model in (plan, rows))
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)


def test_dropout_drops_its_share_and_nothing_in_evaluation():
    module = nn.Sequential(nn.Linear(4000, 4000, bias=False), nn.Dropout(0.3), nn.Linear(4000, 2, bias=False))
    with torch.no_grad():
        module[0].weight.copy_(torch.eye(4000))
        module[2].weight.fill_(0.0)
        module[2].weight[0] = 1e-3
    x = torch.ones(1, 4000)
    plan = PlanModel(module, x)
    plan.check(x)
    row = plan.layout.row(module)[None]
    batch = Batch(x[None], torch.tensor([[1]]), torch.ones(1, 1))
    torch.manual_seed(0)
    slope = plan.layout.views(plan.gradient(row, batch)[0])["2.weight"][
        0
    ]  # proportional to what was not dropped
    dropped = float((slope == 0).float().mean())
    assert 0.27 < dropped < 0.33
    kept = slope[slope != 0]
    assert torch.allclose(kept, kept[0].expand_as(kept), rtol=1e-5)
    torch.manual_seed(0)
    assert torch.equal(slope, plan.layout.views(plan.gradient(row, batch)[0])["2.weight"][0])
    assert plan.logits(row, x[None])[0, 0, 0] == pytest.approx(4.0, rel=1e-5)


@pytest.mark.parametrize(
    ("make", "x", "why"),
    [
        (
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.Tanh(), nn.Linear(8, 5)),
            floats(2, 4),
            "tanh",
        ),
        (
            lambda: nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 5)),
            floats(2, 4, 4),
            "groups",
        ),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 5)).double(), floats(2, 4).double(), "float64"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_reason(make, x, why):
    with pytest.raises(Unplanned, match=why):
        PlanModel(made(make), x)


def test_a_shared_or_frozen_parameter_is_refused():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(8, 8), nn.Linear(8, CLASSES)

        def forward(self, x):
            return self.head(self.body(torch.relu(self.body(x))))

    with pytest.raises(Unplanned, match=r"body\.weight is used twice"):
        PlanModel(Twice(), torch.ones(2, 8))
    frozen = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    frozen[0].weight.requires_grad_(False)
    with pytest.raises(Unplanned, match=r"0\.weight is frozen"):
        PlanModel(frozen, torch.ones(2, 8))


def test_a_forward_that_looks_at_its_examples_is_refused():
    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(8, 8), nn.Linear(8, CLASSES)

        def forward(self, x):
            return self.head(torch.relu(self.body(x)) if x.max() > 0 else self.body(x))

    with pytest.raises(Unplanned, match="max"):
        PlanModel(Looking(), torch.ones(2, 8))


def test_a_wrong_trace_is_found_out():
    """A module that answers otherwise outside of training is not what was traced."""

    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(8, 8), nn.Linear(8, CLASSES)

        def forward(self, x):
            x = self.body(x)
            return self.head(torch.relu(x) if self.training else x)

    plan = PlanModel(made(Other), torch.ones(2, 8))
    with pytest.raises(Unplanned, match="other logits"):
        plan.check(torch.randn(4, 8))


def test_rows_hold_taps_first_and_modules_do_not_notice():
    module = made(cnn)
    layout = Layout(module)
    row = layout.row(module)
    kernel = module[0].weight
    taps = row[layout.columns["0.weight"]].view(5, 5, 3, 8)
    assert torch.equal(taps[1, 2], kernel[:, :, 1, 2].T)
    again = layout.fill(made(cnn, 1), row)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), again.parameters(), strict=True))
    leaf = row.clone().requires_grad_()
    loss = cross_entropy(
        torch.func.functional_call(module, layout.views(leaf), (floats(2, 28),)), torch.tensor([0, 1])
    ).sum()
    slope = torch.autograd.grad(loss, leaf)[0]
    assert slope.shape == row.shape


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"clip": 0.5, "weight_decay": 0.01}])
@pytest.mark.parametrize("name", MODULES)
def test_ten_steps_are_those_of_the_rows_path(name, options):
    make, draw = MODULES[name]
    module, x = made(make), draw(40)
    examples = Examples(x, (torch.arange(40) * 3) % CLASSES, torch.tensor([0, 40]))
    batches = batching.draw(np.array([7], np.uint64), np.array([40]), np.array([2]), 8)
    settings = {"weight_decay": 0.0, "clip": float("inf"), "momentum": 0.0, **options}
    descent = Descent(
        examples, torch.tensor([0]), batches, options=Options(lr=torch.tensor([0.001])), **settings
    )
    plan = PlanModel(module, x)
    row = plan.layout.row(module)[None]
    ours, theirs = (model.descend(row, descent).rows for model in (plan, RowModel(module)))
    assert int(batches.steps[0]) == 10
    assert not torch.equal(ours, row)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_without_a_blas_rows_are_trained_and_the_reason_is_said(monkeypatch):
    monkeypatch.setattr(blas, "PROVIDER", None)
    model = paths.build(made(cnn), floats(4, 28), "auto", "cpu")
    assert model.path in ("rows", "stacked")
    assert model.why == "no sgemm was found in torch or NumPy"


def test_code_of_other_sources_is_not_taken_from_the_cache(tmp_path):
    """numba looks at the date of one file; all of them are in the name of what it keeps."""
    files = []
    for number, file in enumerate(kept.sources()):
        files.append(tmp_path / f"{number}.py")
        files[-1].write_bytes(file.read_bytes())
    names = {file.name for file in kept.sources()}
    assert {"operations.py", "tiles.py", "loops.py", "blas.py", "simd.py", "rng.py"} <= names
    first = kept.digest(files)
    assert first == kept.digest(kept.sources())

    def name(version: str) -> object:
        def function(op, work):
            pass

        return njit(cache=True)(kept.named(function, version))._cache._impl.filename_base

    for function in (loops.run, *operations.FUNCTIONS.values()):
        assert f"_{first[:16]}-" in function._cache._impl.filename_base
    for file in files:
        before = file.read_bytes()
        file.write_bytes(before + b"#")
        changed = kept.digest(files)
        assert name(changed) != name(first)
        file.write_bytes(before)
    assert name(kept.digest(files)) == name(first)
