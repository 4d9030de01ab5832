"""Modules at random, and modules that try to mislead the tracer: each is refused, or agrees with autograd."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import pagefl
from pagefl.core.errors import UserError
from pagefl.core.evaluate import cross_entropy
from pagefl.core.examples import Examples
from pagefl.core.training.descent import Batch
from pagefl.core.training.model import RowModel
from pagefl.core.training.plan.model import PlanModel
from pagefl.core.training.plan.trace import Unplanned

pytestmark = pytest.mark.xdist_group("plans")  # one worker compiles
CLASSES = 5


class Drawn(nn.Module):
    """A stack of layers that a list of choices describes. What does not fit the maps is left out."""

    FLATTENED = (
        lambda x: x.flatten(1),
        lambda x: torch.flatten(x, 1),
        lambda x: x.view(len(x), -1),
        lambda x: x.reshape(x.size(0), -1),
        lambda x: x.mean([2, 3]),
        lambda x: x.mean(dim=(-2, -1)),
        lambda x: functional.adaptive_avg_pool2d(x, 1).flatten(1),
    )
    RELUS = (
        functional.relu,
        torch.relu,
        lambda x: x.relu(),
        lambda x: x.relu_(),
        nn.ReLU(),
        nn.ReLU(inplace=True),
    )

    def __init__(self, choices: list[tuple[str, int, int]], x: torch.Tensor, ending: int) -> None:
        super().__init__()
        self.steps: list[tuple[str, int]] = []
        self.layers = nn.ModuleList()
        self.ending = ending
        self.head = self.body = nn.Identity()
        with torch.no_grad():
            for kind, a, b in choices:
                maps = self.maps(x)[-1]
                channels, size = maps.shape[1], min(maps.shape[2:])
                layer = nn.Identity()
                if kind == "conv":
                    kernel, padding = 1 + a % 3, b % 3
                    if size + 2 * padding < kernel:
                        continue
                    layer = nn.Conv2d(channels, 1 + a, kernel, 1 + b % 2, padding, bias=bool(b % 2))
                elif kind == "norm":
                    groups = [g for g in range(1, channels + 1) if channels % g == 0]
                    layer = nn.GroupNorm(groups[a % len(groups)], channels, affine=b % 3 > 0)
                elif kind in ("maxpool", "avgpool"):
                    kernel = min(1 + a % 3, size)
                    pool = nn.MaxPool2d if kind == "maxpool" else nn.AvgPool2d
                    layer = pool(kernel, 1 + b % 3, kernel // 2 if a % 2 else 0)
                elif kind == "branch":  # two readers of one result, and their sum
                    layer = nn.Conv2d(channels, channels, 3, padding=1, bias=bool(a % 2))
                elif kind == "dropout":
                    layer = nn.Dropout(0.5)
                self.layers.append(layer)
                self.steps.append((kind, a))
            features = self.flat(self.maps(x)[-1]).shape[1]
        self.body = nn.Sequential(nn.Linear(features, 6), nn.LayerNorm(6)) if ending % 2 else nn.Identity()
        self.head = nn.Linear(6 if ending % 2 else features, CLASSES)

    def maps(self, x: torch.Tensor) -> list[torch.Tensor]:
        results = [x]
        for (kind, a), layer in zip(self.steps, self.layers, strict=True):
            x = layer(x)
            if kind == "relu":
                if len(results) == 1:
                    x = x.clone()  # relu_ would change the examples
                x = self.RELUS[a % len(self.RELUS)](x)
            elif kind == "branch":
                x = results[-1] + functional.relu(x)
            elif kind == "earlier":  # an addition to an older result, if one has this shape
                older = [r for r in results[1:-1] if r.shape == x.shape]
                if older:
                    x = x + older[a % len(older)]
            results.append(x)
        return results

    def flat(self, x: torch.Tensor) -> torch.Tensor:
        return self.FLATTENED[self.ending % len(self.FLATTENED)](x)

    def forward(self, x):
        return self.head(self.body(self.flat(self.maps(x)[-1])))


KINDS = ["conv", "norm", "relu", "maxpool", "avgpool", "branch", "earlier", "dropout", "identity"]


def agrees(module: nn.Module, x: torch.Tensor) -> None:
    """A module that passed the check of its plan, against float64; with dropouts only outside of training."""
    plan = PlanModel(module, x)
    plan.check(x)
    exact = copy.deepcopy(module).to(torch.float64 if x.is_floating_point() else torch.float32).eval()
    row = plan.layout.row(module)
    y = torch.arange(len(x)) % CLASSES
    wide = x.double() if x.is_floating_point() else x
    logits = exact(wide.clone())
    ours = plan.logits(row[None], x[None])[0]
    torch.testing.assert_close(
        ours.to(logits.dtype), logits, rtol=1e-3, atol=1e-3 * float(logits.detach().abs().max())
    )
    if any(isinstance(part, nn.Dropout) for part in module.modules()):
        return
    cross_entropy(logits, y).mean().backward()
    wanted = torch.cat(
        [plan.layout.flat(torch.zeros_like(p) if p.grad is None else p.grad) for p in exact.parameters()]
    )
    batch = Batch(x[None], y[None], torch.full((1, len(y)), 1 / len(y)))
    found = plan.gradient(row[None], batch)[0].double()
    assert float((found - wanted).norm()) <= 1e-3 * float(wanted.norm()) + 1e-6


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 8), st.integers(0, 5)), max_size=8),
    st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)),
    st.sampled_from([1, 2, 5]),
    st.integers(0, 13),
)
def test_any_module_is_refused_or_agrees(choices, shape, count, ending):
    torch.manual_seed(len(choices) + count + ending)
    x = torch.randn(count, *shape)
    try:
        module = Drawn(choices, x, ending)
        module(x)
    except ValueError:  # torch itself refuses a norm of single numbers
        return
    allowed = ("addition", "answer is not made", "fails on 1 example")  # such as a residual of the examples
    refused = ""
    try:
        agrees(module, x)
    except Unplanned as reason:
        refused = str(reason)
    assert not refused or any(words in refused for words in allowed), refused


class Own(nn.Module):
    """A body, a head, and a forward of its own."""

    def __init__(self, forward, features: int = 8) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body, self.head = nn.Linear(features, 8), nn.Linear(8, CLASSES)
        self.spare = nn.Linear(8, 8)
        self.register_buffer("constant", torch.full((8,), 0.5))
        self.how, self.count = forward, 0

    def forward(self, x):
        return self.how(self, x)


def alternating(self, x):
    self.count += 1
    x = self.body(x)
    return self.head(x if self.count % 2 else torch.relu(x))


def aliased(self, x):
    x = self.body(x)
    view = x.view(len(x), -1)
    x.relu_()
    return self.head(view)


def not_differentiated(self, x):
    with torch.no_grad():
        x = self.body(x)
    return self.head(torch.relu(x))


def not_differentiated_in_training(self, x):
    with torch.set_grad_enabled(torch.is_grad_enabled() and not self.training):
        x = self.body(x)
    return self.head(torch.relu(x))


def truncated(self, x):
    return self.head(torch.relu(self.body(x.long().float())))


REFUSED = {
    "a forward with a state": (alternating, "from one batch to the next"),
    "a view of what is changed in place": (aliased, "other logits"),
    "no gradient": (not_differentiated, "other gradients"),
    "no gradient in training": (not_differentiated_in_training, "other gradients"),
    "fractions cut off": (truncated, "converted from torch.float32 to torch.int64"),
    "another answer for few": (
        lambda self, x: self.head(torch.relu(self.body(x)) if len(x) > 5 else self.body(x)),
        "from one batch to the next",
    ),
    "a fixed number of examples": (
        lambda self, x: self.head(torch.relu(self.body(x)).view(6, -1)),
        "fails on",
    ),
    "noise": (lambda self, x: self.head(self.body(x + 1e-6 * torch.randn(1))), "from one batch to the next"),
    "a constant in mid-network": (lambda self, x: self.head(self.body(x) + self.constant), "mid-network"),
    "a parameter as a scale": (
        lambda self, x: self.head(self.body(x * (2 * self.spare.bias))),
        "by a parameter",
    ),
    "a look at a parameter": (
        lambda self, x: self.head(
            self.body(x) if float(self.spare.bias.sum()) > 9 else torch.relu(self.body(x))
        ),
        "__float__",
    ),
    "half precision": (lambda self, x: self.head(self.body((x.half() / 3).float())), "float16"),
    "named otherwise": (lambda self, x: self.head(torch.relu(input=self.body(x))), "options"),
    "a sum with itself": (
        lambda self, x: (lambda y: self.head(y.view(len(y), -1) + y))(self.body(x)),
        "addition",
    ),
    "a difference with a factor": (
        lambda self, x: self.head(self.body(torch.sub(x, 1.0, alpha=2))),
        "options",
    ),
    "nothing is left of the examples": (lambda self, x: self.head(self.body(x * 0)), "multiplied by zero"),
    "an assignment": (
        lambda self, x: (lambda y: (y.__setitem__((slice(None), 0), 0.0), self.head(y))[1])(self.body(x)),
        "__setitem__",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_mislead_the_tracer_is_refused(name):
    forward, why = REFUSED[name]
    module, x = Own(forward), torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    with pytest.raises(Unplanned, match=why):
        PlanModel(module, x).check(x)


PLANNED = {
    "a buffer goes where the examples are": lambda self, x: self.head(self.body(x - self.constant.to(x))),
    "a result nobody uses": lambda self, x: (lambda y: (self.spare(y), self.head(y))[1])(self.body(x)),
    "an answer that others read": lambda self, x: (lambda y: (self.spare(self.body(x)), y)[1])(
        self.head(torch.relu(x))
    ),
    "a copy": lambda self, x: self.head(self.body(x.clone()).contiguous()),
}


@pytest.mark.parametrize("name", PLANNED)
def test_what_is_harmless_is_planned(name):
    agrees(Own(PLANNED[name]), torch.randn(6, 8, generator=torch.Generator().manual_seed(1)))


class Pooled(nn.Module):
    """Its answer is a shape of an earlier result, and another result was made in between."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.spare = nn.Conv2d(3, CLASSES, 3), nn.Conv2d(CLASSES, 3, 1)

    def forward(self, x):
        x = functional.adaptive_avg_pool2d(self.first(x), 1)
        self.spare(x)
        return x.flatten(1)


def test_the_answer_need_not_be_the_last_result():
    agrees(Pooled(), torch.randn(3, 3, 5, 5))


def test_two_shapes_of_one_result_are_not_added():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Conv2d(3, 4, 5), nn.Linear(4, CLASSES)

        def forward(self, x):
            x = self.first(x)
            return self.head(x.mean((2, 3)) + x.flatten(1))

    with pytest.raises(Unplanned, match="addition"):
        PlanModel(Twice(), torch.randn(3, 3, 5, 5))


def test_bytes_that_would_overflow_are_refused():
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, CLASSES))

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = module

        def forward(self, x):
            return self.own((x + 100).float())

    with pytest.raises(Unplanned, match="overflow"):
        PlanModel(Shifted(), torch.zeros(2, 3, 2, 2, dtype=torch.uint8))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_whole_numbers_as_features(dtype):
    agrees(
        Own(lambda self, x: self.head(torch.relu(self.body((x / 255 - 0.5) / 0.25)))),
        torch.randint(256, (6, 8), generator=torch.Generator().manual_seed(2)).to(dtype),
    )


def test_features_far_from_zero_cost_no_digits():
    module = Own(lambda self, x: self.head(torch.relu(self.body((x - 20000) / 0.01))))
    x = 20000 + 0.01 * torch.randn(6, 8, generator=torch.Generator().manual_seed(2))
    plan = PlanModel(module, x)
    row = plan.layout.row(module)[None]
    torch.testing.assert_close(
        plan.logits(row, x[None]), RowModel(module).logits(row, x[None]), rtol=1e-5, atol=1e-5
    )


def test_what_is_not_a_number_stays_in_a_pooling():
    module = nn.Sequential(nn.Conv2d(1, 1, 1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1, CLASSES))
    x = torch.randn(1, 1, 2, 2)
    x[0, 0, 0, 0] = torch.nan
    plan = PlanModel(module, x)
    assert plan.logits(plan.layout.row(module)[None], x[None]).isnan().all()


def text() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(12, CLASSES))


@pytest.mark.parametrize("bad", [20, 2**40, -1])
def test_a_token_beyond_the_embedding_is_refused(bad):
    """Compiled code would read outside of the weights."""
    module, x = text(), torch.randint(20, (6, 3))
    plan = PlanModel(module, x)
    row = plan.layout.row(module)
    x[4, 1] = bad
    examples = Examples(x, torch.zeros(6, dtype=torch.long), torch.tensor([0, 2, 6]))
    with pytest.raises(
        UserError, match=rf"client 1 \(test\): x has token {bad}, .* expected tokens from 0 to 19"
    ):
        plan.check_examples(row, examples, "client {} (test)")
    batch = Batch(x[None], examples.y[None], torch.full((1, 6), 1 / 6))
    for use in (
        lambda: plan.logits(row[None], x[None]),
        lambda: plan.gradient(row[None], batch),
        lambda: plan.score(row[None], examples, torch.tensor([0, 1])),
    ):
        with pytest.raises(UserError, match="expected 0 to 19"):
            use()


@pytest.mark.parametrize("bad", [CLASSES, -1, -100])
@pytest.mark.parametrize(
    "make",
    [text, lambda: nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Tanh(), nn.Linear(12, CLASSES))],
)
def test_a_label_without_a_class_is_refused(make, bad):
    module, x, y = make(), torch.randint(20, (6, 3)), torch.zeros(6, dtype=torch.long)
    y[5] = bad
    examples = Examples(x, y, torch.tensor([0, 2, 6]))
    for model in (PlanModel(module, x), RowModel(module)) if make is text else (RowModel(module),):
        with pytest.raises(UserError, match=rf"client 1 \(train\): y has label {bad}, but"):
            model.check_examples(model.layout.row(module), examples, "client {} (train)")


class Asking(nn.Module):
    """Its forward depends on the type of the examples."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, CLASSES)

    def forward(self, x):
        x = x.float() / 255 if x.dtype == torch.uint8 else x
        return self.head(torch.relu(self.conv(x)).mean((2, 3)))


def test_examples_of_another_shape_or_type_are_refused_in_one_sentence():
    module, x = Asking(), torch.randint(256, (4, 3, 6, 8), dtype=torch.uint8)
    plan = PlanModel(module, x)
    row = plan.layout.row(module)
    for other in (x.float(), torch.zeros(4, 3, 7, 7, dtype=torch.uint8), x.permute(0, 1, 3, 2)):
        examples = Examples(other, torch.zeros(4, dtype=torch.long), torch.tensor([0, 4]))
        with pytest.raises(UserError, match=r"^client 0 \(test\): examples are torch") as refusal:
            plan.check_examples(row, examples, "client {} (test)")
        assert "\n" not in str(refusal.value)
        with pytest.raises(UserError, match=r"plan was made for torch\.uint8 \[3, 6, 8\]"):
            plan.logits(row[None], other[None])


def test_another_type_that_means_the_same_is_taken():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4 * 6, CLASSES))

    class Converting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = module

        def forward(self, x):
            return self.own(x.float() / 255)

    whole = Converting()
    x = torch.randint(256, (4, 3, 6, 8), dtype=torch.uint8)
    plan = PlanModel(whole, x)
    row = plan.layout.row(whole)[None]
    assert torch.equal(plan.logits(row, x[None]), plan.logits(row, x[None].float()))


def test_examples_are_not_changed_by_a_forward_in_place():
    torch.manual_seed(0)
    pairs = [(torch.randn(12, 6), torch.arange(12) % 3) for _ in range(2)]
    data = pagefl.FederatedData(pairs, pairs, pairs[0])
    before = [examples.x.clone() for _, examples in data.named()]
    module = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    pagefl.run(task=pagefl.Task("own", module, data, {"batch_size": 4}), rounds=1, epochs=1, workers=1)
    for examples, kept in zip(data.named(), before, strict=True):
        assert torch.equal(examples[1].x, kept), examples[0]


class Seen(nn.Module):
    """Examples that come flat, and are seen as images."""

    def __init__(self, see, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.see = see
        self.conv, self.head = (
            nn.Conv2d(shape[0], 4, 3, padding=1),
            nn.Linear(4 * shape[1] * shape[2], CLASSES),
        )

    def forward(self, x):
        return self.head(torch.relu(self.conv(self.see(x))).flatten(1))


@pytest.mark.parametrize(
    "see",
    [
        lambda x: x.view(-1, 2, 5, 6),
        lambda x: x.reshape(-1, 2, 5, 6),
        lambda x: x.reshape((len(x), 2, -1, 6)),
        lambda x: ((x - 0.5) / 2).view(x.size(0), 2, 5, 6),
        nn.Unflatten(1, (2, 5, 6)),
    ],
)
@pytest.mark.parametrize("count", [1, 3])
def test_flat_examples_seen_as_images(see, count):
    torch.manual_seed(0)
    agrees(Seen(see, (2, 5, 6)), torch.randn(count, 60))


def test_flat_bytes_seen_as_images():
    torch.manual_seed(0)
    x = torch.randint(256, (3, 28 * 28), dtype=torch.uint8)
    agrees(Seen(lambda x: x.view(-1, 1, 28, 28).float() / 255, (1, 28, 28)), x)
    agrees(Seen(lambda x: (x.float() / 255).view(-1, 1, 28, 28), (1, 28, 28)), x)


@pytest.mark.parametrize(
    ("see", "why"),
    [
        (lambda x: (x * torch.arange(1.0, 61.0)).view(-1, 2, 5, 6), "not scaled by channel"),
        (lambda x: x.view(2, 5, 6, -1).permute(3, 0, 1, 2), "keep the examples apart"),
    ],
)
def test_flat_examples_seen_otherwise_are_refused(see, why):
    with pytest.raises(Unplanned, match=why):
        PlanModel(Seen(see, (2, 5, 6)), torch.randn(4, 60))
