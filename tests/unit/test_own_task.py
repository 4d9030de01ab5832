"""A user's own nn.Module and data just work, or are refused with a sentence that helps."""

import pytest
import torch
from federations import CLASSES, FEATURES, QUICK, SETTINGS, data, task
from torch import nn

import pagefl
from pagefl import Task
from pagefl.algorithms import ALGORITHMS
from pagefl.runtime import paths
from pagefl.runtime.run import Run


class Odd(nn.Module):
    """Takes what nn.Sequential cannot: an LSTM, which vmap has no rule for, a frozen layer, a buffer that
    stays.
    """

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(FEATURES, FEATURES).requires_grad_(False)
        self.register_buffer("scale", torch.full((1,), 0.5))
        self.lstm = nn.LSTM(1, 3, batch_first=True)
        self.head = nn.Linear(3, CLASSES)

    def forward(self, x):
        return self.head(self.lstm(self.frozen(x * self.scale)[..., None])[0][:, -1])


def learn(module, **settings) -> Run:
    return pagefl.run(
        task=Task("own", module, data(), {**SETTINGS, **settings}), algorithm="fedavg", rounds=3
    )


def test_an_lstm_is_trained_row_by_row():
    made = Odd()
    run = learn(made)
    assert torch.equal(run.model.frozen.weight, made.frozen.weight)
    assert run.state["server.model"].shape[0] == sum(p.numel() for p in made.parameters() if p.requires_grad)


def test_dropout_is_random_but_reproducible():
    make = lambda: nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES))  # noqa: E731
    first, second, parallel = learn(make), learn(make), learn(make, workers=2)
    without = learn(lambda: nn.Sequential(nn.Linear(FEATURES, 8), nn.Identity(), nn.Linear(8, CLASSES)))
    assert torch.equal(first.state["server.model"], second.state["server.model"])
    assert torch.equal(first.state["server.model"], parallel.state["server.model"])
    assert not torch.allclose(first.state["server.model"], without.state["server.model"])


def test_a_run_leaves_torch_as_it_was():
    torch.set_num_threads(2)
    module = nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.Dropout(0.1))
    state = torch.get_rng_state()
    learn(module)
    assert torch.get_num_threads() == 2
    assert torch.equal(torch.get_rng_state(), state)


def test_the_users_module_is_not_changed():
    module = nn.Linear(FEATURES, CLASSES)
    before = module.weight.clone()
    run = learn(module)
    assert torch.equal(module.weight, before)
    assert not torch.equal(run.model.weight, before)
    assert not torch.equal(run.personal(1).weight, run.model.weight)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (
            nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES)),
            ["BatchNorm", "GroupNorm"],
        ),
        (nn.Linear(FEATURES + 1, CLASSES), ["cannot take a batch of torch.float32 [4, 6]"]),
        (
            nn.Linear(FEATURES, CLASSES - 1),
            ["client 1 (train): y has label 3", "3 classes", "labels from 0 to 2"],
        ),
        (nn.LSTM(FEATURES, CLASSES), ["LSTM answers a batch of 4 with a tuple", "[4, classes]"]),
        (nn.Identity(), ["no trainable parameter"]),
        (nn.Sequential(nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES).double()), ["mixes parameter types"]),
    ],
)
def test_refused_modules(module, words):
    with pytest.raises(pagefl.UserError) as refusal:
        learn(module)
    assert all(word in str(refusal.value) for word in words), refusal.value


def test_holdout_takes_a_share_of_every_client():
    whole, held = task().data, task().data.hold_out(0.3, seed=0)
    assert held.holdout.sizes.tolist() == [1, 5, 12, 8, 3]
    assert (held.train.sizes + held.holdout.sizes).tolist() == whole.train.sizes.tolist()


@pytest.mark.parametrize(
    ("algorithm", "module"), [("fedavg", "linear"), ("fedavg", "mlp"), ("fedala", "mlp")]
)
def test_holdout_is_not_trained_on(algorithm, module):
    """With other labels in the hold-out every trained tensor is the same, bit for bit, and what it is judged
    by is not.
    """
    clean, poisoned = task(module), task(module)
    held = clean.data.hold_out(0.3, seed=0).holdout
    out = (clean.data.train.x[:, None] == held.x).all(2).any(1)
    assert int(out.sum()) == len(held.y)
    poisoned.data.train.y[out] = (clean.data.train.y[out] + 1) % CLASSES

    made = ALGORITHMS[algorithm](**QUICK.get(algorithm, {}))
    with_holdout, without = (
        [
            pagefl.run(task=own, algorithm=made, holdout=share, seed=0, stop="equilibrium")
            for own in (clean, poisoned)
        ]
        for share in (0.3, 0.0)
    )
    for key, value in with_holdout[0].state.items():
        if key != "clients.stepped":  # the personal step is chosen by the hold-out
            assert torch.equal(value, with_holdout[1].state[key]), key
    assert with_holdout[0].rounds[-1]["train_loss"] != with_holdout[1].rounds[-1]["train_loss"]
    # so the labels matter where they are trained on
    assert not torch.equal(*(run.state["server.model"] for run in without))


def test_the_path_is_measured_once(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    races = []
    monkeypatch.setattr(paths, "_race", lambda *_: races.append(1) or "rows")
    module, x = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)), torch.zeros(4, 6)
    assert [paths.build(module, x, "auto", "cpu").path for _ in range(3)] == ["rows"] * 3
    assert len(races) == 1


@pytest.mark.parametrize(
    ("module", "path"),
    [
        (nn.Linear(6, 4), "fused"),
        (nn.Sequential(nn.Flatten(), nn.Linear(6, 4)), "fused"),
        (nn.Sequential(nn.Linear(6, 4), nn.ReLU()), "plan"),
        (nn.Linear(6, 4, bias=False), "plan"),
        (nn.Sequential(nn.Linear(6, 4), nn.Tanh()), "stacked or rows"),
        (Odd(), "rows"),
    ],
)
def test_a_fitting_path(module, path):
    assert paths.build(module, torch.randn(4, 6), "auto", "cpu").path in path


def test_a_run_tells_its_path_and_why():
    said: list[str] = []
    options = {"rounds": 1, "say": said.append}
    planned, other = (
        pagefl.run(
            task=Task(
                "own", nn.Sequential(nn.Linear(FEATURES, 5), by, nn.Linear(5, CLASSES)), data(), SETTINGS
            ),
            **options,
        )
        for by in (nn.ReLU(), nn.Tanh())
    )
    assert planned.path == "plan"
    assert other.path in [f"{path}, since a plan has no operation for tanh" for path in ("stacked", "rows")]
    assert any("a plan has no operation for tanh" in line for line in said)


def test_dropout_is_planned_and_shares_no_stream():
    module = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, CLASSES))
    runs = [learn(module, workers=workers, seed=seed) for workers, seed in ((1, 0), (2, 0), (3, 0), (1, 1))]
    assert {run.path for run in runs} == {"plan"}
    first, *others = (run.state["clients.personal"] for run in runs)
    assert [torch.equal(first, other) for other in others] == [True, True, False]


def fails(*_: object) -> nn.Module:
    raise KeyError("no such file")


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("module is a int; expected an nn.Module", {"module": 3}),
        ("module() failed: TypeError", {"module": lambda width: nn.Linear(width, CLASSES)}),
        ("module() failed: KeyError: 'no such file'", {"module": fails}),
        ("module() returned a int; expected an nn.Module", {"module": lambda: 3}),
        ("data is a list; expected a pagefl.FederatedData", {"data": [(torch.ones(4, 2), torch.ones(4))]}),
        ("data() failed: KeyError", {"data": fails}),
        ("data() returned a list; expected a pagefl.FederatedData", {"data": list}),
        ("name = '': must be one line of text", {"name": ""}),
        ("name = 'a\\nb': must be one line of text", {"name": "a\nb"}),
        ("task = 'digits': a task of pagefl has this name", {"name": "digits"}),
        ("there is no setting 'batchsize'; did you mean batch_size?", {"settings": {"batchsize": 4}}),
        ("there is no setting 'algorithm'", {"settings": {"algorithm": "fedprox"}}),  # it would be ignored
        ("lr = 'fast'", {"settings": {"lr": "fast"}}),
    ],
)
def test_a_task_that_cannot_be_played_is_refused(words, arguments):
    good = {"name": "own", "module": nn.Linear(FEATURES, CLASSES), "data": data(), "settings": SETTINGS}
    with pytest.raises(pagefl.UserError) as refusal:
        pagefl.run(task=Task(**{**good, **arguments}), rounds=1)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)
