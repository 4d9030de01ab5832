import pytest
import torch
from torch import nn

from pagefl.core.training.plan.model import PlanModel
from pagefl.models.characters import character_mlp
from pagefl.models.lstm import lstm
from pagefl.models.resnet import resnet18


def size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(("stem", "parameters"), [("imagenet", 11_227_812), ("small", 11_220_132)])
def test_resnet18_has_the_usual_number_of_parameters(stem, parameters):
    assert size(resnet18(100, stem=stem)) == parameters


@pytest.mark.parametrize(("stem", "side"), [("imagenet", 1), ("small", 4)])
def test_resnet18_halves_the_image_three_times_after_its_stem(stem, side):
    module = resnet18(10, stem=stem, width=4)
    x = torch.randn(3, 3, 32, 32)
    assert module.body(module.stem(module.pixels(x))).shape == (3, 32, side, side)
    assert module(x).shape == (3, 10)


def test_resnet18_judges_an_example_alone_as_in_a_batch():
    module = resnet18(10, width=4)
    x = torch.randn(3, 3, 32, 32)
    assert torch.allclose(module(x)[:1], module(x[:1]), atol=1e-5)


def test_lstm_has_the_parameters_of_its_parts():
    layers = sum(4 * 100 * (inputs + 100 + 2) for inputs in (8, 100))
    assert size(lstm()) == 80 * 8 + layers + 100 * 80 + 80


def test_lstm_answers_from_the_last_character():
    module = lstm()
    x = torch.randint(80, (3, 80))
    other = torch.cat([x[:, :-1], (x[:, -1:] + 1) % 80], dim=1)
    assert module(x).shape == (3, 80)
    assert not torch.equal(module(x), module(other))


@pytest.mark.parametrize("module", [resnet18(10, width=4), lstm(), character_mlp(80, 8)])
def test_the_head_is_the_last_linear_layer(module):
    assert isinstance(module.head, nn.Linear)
    assert list(module.state_dict())[-2:] == ["head.weight", "head.bias"]


def test_resnet18_takes_bytes_and_numbers_alike():
    module = resnet18(10, width=4)
    x = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    torch.testing.assert_close(module(x), module(x.float() / 255))
    assert module(torch.zeros(2, 3, 64, 64)).shape == (2, 10)


def test_lstm_is_torchs_own():
    module, hidden = lstm(), 100
    embedding, theirs, head = (
        nn.Embedding(80, 8),
        nn.LSTM(8, hidden, 2, batch_first=True),
        nn.Linear(hidden, 80),
    )
    for mine, other in ((module.embedding, embedding), (module.lstm, theirs), (module.head, head)):
        other.load_state_dict(mine.state_dict())
    x = torch.randint(80, (3, 80), dtype=torch.uint8)
    _, (last, _) = theirs(embedding(x.long()))
    torch.testing.assert_close(module(x), head(last[-1]))


def test_the_character_mlp_is_planned_and_reads_every_character_at_its_place():
    module = character_mlp(80, 8, embedding=4, hidden=16)
    x = torch.randint(80, (3, 8), dtype=torch.uint8)
    PlanModel(module, x).check(x)
    places = torch.cat([module.embedding.weight[x[:, i].long()] for i in range(8)], 1)
    inner = (places @ module.body.weight.T + module.body.bias).clamp(min=0)
    torch.testing.assert_close(module(x), inner @ module.head.weight.T + module.head.bias)
