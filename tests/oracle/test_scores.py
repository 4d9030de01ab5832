"""Loss and accuracy of every path against torch's own functions, client by client."""

import pytest
import torch
from federations import PATHS, data
from torch import nn

from pagefl.core.evaluate import BLOCK
from pagefl.core.examples import Examples
from pagefl.core.training.linear import LinearModel


def expected(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    with torch.no_grad():
        logits = module(x)
    return float(nn.functional.cross_entropy(logits, y)), float((logits.argmax(1) == y).double().mean())


@pytest.mark.parametrize(("path", "make"), PATHS)
@pytest.mark.parametrize("shared", [True, False])
def test_scores(path, make, shared):
    examples = data(sizes=(3, BLOCK + 40, 9, 25, 17)).train
    owners = torch.tensor([4, 0, 1])
    modules = [make() for _ in owners]
    if shared:
        modules = modules[:1] * 3
    model = path(make())
    rows = torch.stack([model.layout.row(module) for module in modules])
    loss, accuracy = model.score(rows[:1] if shared else rows, examples, owners)
    for i, owner in enumerate(owners):
        want = expected(modules[i], *examples.client(int(owner)))
        assert (loss[i], accuracy[i]) == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize(("path", "make"), PATHS)
def test_of_equal_logits_the_first_counts(path, make):
    """A model of zeros is not right about everything."""
    module, examples = make(), data().train
    model = path(module)
    row = torch.zeros(1, model.layout.width)
    zeros = model.layout.fill(module, row[0])
    loss, accuracy = model.score(row, examples, torch.arange(5))
    for i in range(5):
        assert (loss[i], accuracy[i]) == pytest.approx(expected(zeros, *examples.client(i)), rel=1e-5)


def test_extreme_logits_stay_finite():
    module = nn.Linear(6, 4)
    with torch.no_grad():
        module.weight.mul_(1e4)
    examples = data().train
    model = LinearModel(module)
    loss, _ = model.score(
        model.layout.row(module)[None],
        Examples(examples.x, examples.y, torch.tensor([0, len(examples.y)])),
        torch.tensor([0]),
    )
    assert loss[0] == pytest.approx(expected(module, examples.x, examples.y)[0], rel=1e-5)
