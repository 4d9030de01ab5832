"""Whatever form a client's examples have, they become the same federation, or one sentence names whose are
wrong.
"""

import numpy as np
import pandas as pd
import pytest
import torch
from federations import CLASSES, FEATURES, SETTINGS, client
from PIL import Image
from torch import nn
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

import pagefl
from pagefl import FederatedData, Task

X = np.random.default_rng(0).normal(size=(20, FEATURES)).astype(np.float32)
Y = np.arange(20) % CLASSES


class Items(Dataset):
    """Examples one by one, as they come from a disk."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(X, Y, strict=True)


class Broken(Items):
    def __getitem__(self, i):
        if i == 7:
            raise OSError("disk on fire")
        return super().__getitem__(i)


def read_only(array):
    frozen = array.copy()
    frozen.setflags(write=False)
    return frozen


SAME = {
    "arrays": (X, Y),
    "tensors": (torch.tensor(X), torch.tensor(Y)),
    "lists": (X.tolist(), Y.tolist()),
    "a list of two": [X, Y],
    "data frames": (pd.DataFrame(X, index=range(100, 120)), pd.Series(Y, index=range(50, 70))),
    "a list of tensors": (list(torch.tensor(X)), [torch.tensor(y) for y in Y]),
    "float64": (X.astype(np.float64), Y),
    "longdouble": (X.astype(np.longdouble), Y),
    "big-endian": (X.astype(">f4"), Y.astype(">i2")),
    "Fortran order": (np.asfortranarray(X), Y),
    "reversed twice": (X[::-1].copy()[::-1], Y[::-1].copy()[::-1]),
    "read-only": (read_only(X), read_only(Y)),
    "not contiguous": (torch.tensor(X).T.contiguous().T, torch.tensor(np.repeat(Y, 2))[::2]),
    "with a gradient": (torch.tensor(X).requires_grad_(), torch.tensor(Y)),
    "a Dataset": Items(X, Y),
    "numbers as labels": Items(torch.tensor(X), Y.tolist()),
    "TensorDataset": TensorDataset(torch.tensor(X), torch.tensor(Y)),
    "Subset": Subset(TensorDataset(torch.tensor(X).repeat(2, 1), torch.tensor(Y).repeat(2)), range(20, 40)),
    **{f"labels {kind}": (X, Y.astype(kind)) for kind in ("i1", "i2", "i4", "u1", "u2", "u4", "u8")},
}


@pytest.mark.parametrize("given", SAME.values(), ids=SAME)
def test_every_form_becomes_the_same_federation(given):
    expected, found = (FederatedData.split([client(20, 0), own], seed=3) for own in (SAME["tensors"], given))
    for (_, mine), (_, theirs) in zip(expected.named(), found.named(), strict=True):
        assert torch.equal(mine.y, theirs.y)
        assert torch.equal(mine.x, theirs.x.float())
    assert torch.equal(FederatedData([given], [given], given).train.x.float(), torch.tensor(X))


def test_truth_values_are_labels_and_numbers():
    made = FederatedData.split([(X > 0, X[:, 0] > 0)])
    assert made.train.x.dtype == torch.float32
    assert set(made.train.y.tolist()) == {0, 1}
    assert torch.equal(made.train.y, made.train.x[:, 0].long())


@pytest.mark.parametrize(
    ("given", "kept"), [("u1", torch.uint8), ("i2", torch.int64), ("u4", torch.int64), ("f2", torch.float32)]
)
def test_bytes_stay_bytes_and_other_whole_numbers_become_int64(given, kept):
    x = np.arange(20 * 3).reshape(20, 3).astype(given)
    assert FederatedData.split([(x, Y)]).train.x.dtype == kept


def test_images_become_bytes_with_channels_first():
    grey = [Image.fromarray(np.full((4, 5), i, np.uint8)) for i in range(20)]
    red = [
        Image.fromarray(np.dstack([np.full((4, 5), i, np.uint8)] + [np.zeros((4, 5), np.uint8)] * 2))
        for i in range(20)
    ]
    pair = Items(grey, Y)
    assert torch.equal(
        FederatedData([pair], [pair], pair).train.x, torch.arange(20)[:, None, None, None].expand(-1, 1, 4, 5)
    )
    x = FederatedData([(red, Y)], [(red, Y)], (red, Y)).train.x
    assert x.shape == (20, 3, 4, 5)
    assert torch.equal(x[:, 0, 0, 0], torch.arange(20))
    assert not x[:, 1:].any()
    with pytest.raises(pagefl.UserError, match="client 0: x has images of 2 sizes"):
        FederatedData.split([([*grey[:19], grey[0].resize((9, 9))], Y)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_module_trains_in_its_own_type(dtype):
    """NumPy's default is float64, torch's float32; the module decides."""
    clients = [(X.astype(np.float64) + i, Y) for i in range(2)]
    tasks = [
        Task(
            "own",
            nn.Linear(FEATURES, CLASSES).to(dtype),
            FederatedData.split([(x.astype(kind), y) for x, y in clients]),
            SETTINGS,
        )
        for kind in ("f4", "f8")
    ]
    tasks[1].module.load_state_dict(tasks[0].module.state_dict())
    single, double = (pagefl.run(task=task).state["server.model"] for task in tasks)
    assert single.dtype == double.dtype == dtype
    assert torch.allclose(single, double, atol=1e-5)
    assert torch.equal(single, double) == (dtype == torch.float32)  # in float64 no digit of the data is lost


def test_what_float32_cannot_hold_is_refused_by_name():
    x = X.astype(np.float64)
    x[13] = 1e300
    task = Task("own", nn.Linear(FEATURES, CLASSES), FederatedData.split([(X, Y), (x, Y)]), SETTINGS)
    with pytest.raises(
        pagefl.UserError,
        match=r"client 1 \(\w+\): x has 1e\+300, which the module's torch.float32 cannot hold",
    ):
        pagefl.run(task=task)


def with_nan(place):
    x = X.copy()
    x[place, 2] = np.nan
    return x


BAD = {
    "x has shape [40, 6] and y has shape [20]": (np.repeat(X, 2, 0), Y),
    "x has shape [20, 6] and y has shape [40]": (X, np.repeat(Y, 2)),
    "x is NaN or infinite in example 17; every value must be finite": (with_nan(17), Y),
    "x is NaN or infinite in example 0": (torch.full((20, FEATURES), torch.inf), Y),
    "examples are float32 [3], but those of client 0 are float32 [6]; they must agree": (X[:, :3], Y),
    "examples are uint8 [6], but those of client 0 are float32 [6]": (X.astype(np.uint8), Y),
    "y holds float32 values; expected whole-number labels from 0": (X, Y.astype(np.float32)),
    "y has label -3 in example 0": (X, Y - 3),
    "y has shape [20, 1]; expected one label for each example, [20]": (X, Y[:, None]),
    "y has shape [20, 4]": (X, np.eye(CLASSES, dtype=int)[Y]),
    "y has 18446744073709551615": (X, np.full(20, 2**64 - 1, np.uint64)),
    "y holds text": (X, [f"class {y}" for y in Y]),
    "y holds objects": (X, None),
    "x has shape [0, 6], which holds no number; expected at least one example": (X[:0], Y[:0]),
    "x has shape [20, 0]": (X[:, :0], Y),
    "x is not an array of numbers (setting an array element": ([[1.0, 2.0], [3.0]], [0, 1]),
    "x is not an array of numbers (stack expects each tensor": ([torch.ones(2), torch.ones(3)], [0, 1]),
    "x holds objects": (X.astype(object), Y),
    "x holds complex numbers": (X + 1j, Y),
    "x holds datetime64[D]": (np.full((20, 2), np.datetime64("2026-01-01")), Y),
    "x is a tensor of layout torch.sparse_coo on cpu; expected a dense one": (torch.tensor(X).to_sparse(), Y),
    "x is a tensor of layout torch.strided on meta": (torch.ones(20, FEATURES, device="meta"), Y),
    "x has masked values": (np.ma.masked_less(X, 0), Y),
    "found a dict": {"x": X, "y": Y},
    "found a ndarray; expected (x, y), or a map-style Dataset": X,
    "found a tuple": (X, Y, Y),
    "found a list": list(zip(X, Y, strict=True)),
    "found a Stream": Stream(),
    "found a NoneType": None,
    "example 7 cannot be read (OSError: disk on fire)": Broken(X, Y),
    "example 0 is a tuple; expected (x, y)": TensorDataset(torch.tensor(X)),
    "0 examples": Items(X[:0], Y[:0]),
}


@pytest.mark.parametrize(("words", "given"), BAD.items(), ids=BAD)
def test_the_client_that_is_wrong_is_named(words, given):
    good = (X, Y)
    with pytest.raises(pagefl.UserError) as refusal:
        FederatedData.split([good, good, good, given])
    said = str(refusal.value)
    assert said.startswith("client 3: ")
    assert "\n" not in said
    if words != "0 examples":
        assert words in said
    for role, arguments in {
        "client 1 (train)": ([good, given], [good, good], good),
        "client 1 (test)": ([good, good], [good, given], good),
        "client 1 (holdout)": ([good, good], [good, good], good, [good, given]),
        "server": ([good, good], [good, good], given),
    }.items():
        with pytest.raises(pagefl.UserError) as refusal:
            FederatedData(*arguments)
        assert str(refusal.value).startswith(f"{role}: "), refusal.value


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("clients has 0 clients", {"clients": []}),
        ("clients is a Tensor; expected a list", {"clients": torch.ones(4, 2)}),
        ("clients is a dict; expected a list", {"clients": {0: (X, Y)}}),
        ("clients is a Items; expected a list", {"clients": Items(X, Y)}),
        ("clients is a int", {"clients": 3}),
        (
            "test = 1.5: must be a share of each client's examples, greater than 0 and less than 1",
            {"test": 1.5},
        ),
        ("test = 0:", {"test": 0}),
        ("test = nan:", {"test": float("nan")}),
        ("test = True:", {"test": True}),
        ("test = '0.2':", {"test": "0.2"}),
        ("server = -0.1:", {"server": -0.1}),
        ("server: found a str; expected (x, y)", {"server": "0.2"}),
        ("holdout = -0.1: must be a share of each client's examples, at least 0", {"holdout": -0.1}),
        ("test + server + holdout = 1.1: must be less than 1", {"test": 0.5, "server": 0.5, "holdout": 0.1}),
        ("client 0 has 20 examples: the shares test=0.01, server=0.2, holdout=0.0 must each", {"test": 0.01}),
        ("client 0 has 20 examples", {"holdout": 0.01}),
        ("seed = 1.5: must be a whole number", {"seed": 1.5}),
        ("augment = 'flip': must be a function", {"augment": "flip"}),
    ],
)
def test_a_split_that_cannot_be_made_is_refused(words, arguments):
    with pytest.raises(pagefl.UserError) as refusal:
        FederatedData.split(**{"clients": [(X, Y)], **arguments})
    assert words in str(refusal.value)


def test_roles_need_as_many_clients():
    with pytest.raises(pagefl.UserError, match="test has 1 clients but train has 2"):
        FederatedData([(X, Y), (X, Y)], [(X, Y)], (X, Y))
    with pytest.raises(pagefl.UserError, match="server: there is 1 example; expected at least two"):
        FederatedData([(X, Y)], [(X, Y)], (X[:1], Y[:1]))


def test_later_changes_do_not_reach_the_federation():
    x, y = torch.tensor(X), torch.tensor(Y)
    made = FederatedData([(x, y)], [(x, y)], (x, y), holdout=[(x, y)])
    before = [(part.x.clone(), part.y.clone()) for _, part in made.named()]
    x.zero_()
    y.zero_()
    assert all(
        torch.equal(part.x, a) and torch.equal(part.y, b)
        for (_, part), (a, b) in zip(made.named(), before, strict=True)
    )


def test_split_gives_every_example_one_role():
    x = torch.arange(375.0)[:, None]
    parts = FederatedData.split([(x, torch.zeros(375, dtype=torch.long))], holdout=0.1, seed=3)
    roles = [parts.train, parts.test, parts.game, parts.server_test, parts.holdout]
    assert torch.equal(torch.cat([role.x for role in roles]).flatten().sort().values, x.flatten())
    assert [len(role.y) for role in roles] == [172, 90, 37, 38, 38]


def test_a_numpy_seed_is_the_same_seed():
    one, other = (FederatedData.split([(X, Y)], seed=seed) for seed in (3, np.int64(3)))
    assert torch.equal(one.train.x, other.train.x)
    dealt = [pagefl.data.partition.iid(20, 2, seed).client(0).tolist() for seed in (3, np.int64(3))]
    assert dealt[0] == dealt[1]


def test_clients_may_come_one_by_one():
    assert len(FederatedData.split((X, Y) for _ in range(3)).train) == 3


def test_an_example_may_be_one_number():
    class Polynomial(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x):
            return self.linear(torch.stack([x, x**2, x**3], 1))

    class Line(nn.Linear):  # of the fused kernel's shapes
        def forward(self, x):
            return super().forward(x[:, None])

    data = FederatedData.split([(X[:, 0], (X[:, 0] > 0))])
    for module in (Polynomial(), Line(1, 2)):
        assert len(pagefl.run(task=Task("own", module, data, SETTINGS)).rounds) == 3
