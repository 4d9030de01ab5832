"""Images as PFLlib's benchmark divides them."""

import numpy as np
import pytest
import torch

from pagefl import UserError
from pagefl.data.merged import FEWEST, class_shares, federation
from pagefl.data.originals import Original

LABELS = np.arange(2000) % 20


@pytest.fixture
def numbered(monkeypatch, tmp_path) -> Original:
    """Every image is its number."""
    monkeypatch.setenv("PAGEFL_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    x, y = torch.arange(2000)[:, None], torch.from_numpy(LABELS)
    arrays = {"train.x": x[:1500], "train.y": y[:1500], "test.x": x[1500:], "test.y": y[1500:]}
    return Original("numbers", (".",), "", str, lambda source: {k: v.clone() for k, v in arrays.items()})


def test_three_quarters_of_a_clients_images_train(numbered):
    data = federation(numbered, 5, 0.5, seed=0)
    dealt = class_shares(LABELS, 5, 0.5, seed=0)
    assert data.train.sizes.tolist() == [round(0.75 * int(size)) for size in dealt.sizes]
    for i in range(5):
        own = torch.cat([data.train.client(i)[0], data.test.client(i)[0]])[:, 0]
        assert set(own.tolist()) <= set(dealt.client(i).tolist())


def test_the_server_judges_by_everybodys_test_images_and_plays_with_others(numbered):
    data = federation(numbered, 5, 0.5, seed=0)
    assert torch.equal(data.server_test.x, data.test.x)
    assert torch.equal(data.server_test.y, data.test.y)
    assert len(data.game.y) == pytest.approx(2000 * 0.25 * 0.1, abs=5)
    everything = torch.cat([data.train.x, data.test.x, data.game.x])[:, 0]
    assert everything.sort().values.tolist() == list(range(2000))  # each image once
    for examples in (data.train, data.test, data.game):
        assert torch.equal(examples.y, torch.from_numpy(LABELS)[examples.x[:, 0]])


def test_classes_are_shared_out_by_dirichlet():
    """Each class goes to few clients if delta is small, and evenly if it is large."""
    few, even = (class_shares(LABELS, 10, delta, seed=1).class_counts(LABELS) for delta in (0.1, 1e6))
    assert (abs(even - 10) <= 1).all()
    assert (few > 0).sum(0).mean() < 6
    shares = few / few.sum(0)
    assert (shares.max(0) > 0.4).mean() > 0.5
    # in the order of the classes, a client with its fair share or more gets nothing of the next
    before = few.cumsum(1)[:, :-1]
    assert (few[:, 1:][before >= 200] == 0).all()


def test_it_is_drawn_again_until_everybody_has_enough():
    for seed in range(5):
        dealt = class_shares(LABELS, 40, 0.1, seed)
        assert dealt.sizes.min() >= FEWEST
        assert np.array_equal(dealt.order, class_shares(LABELS, 40, 0.1, seed).order)
    with pytest.raises(UserError, match=r"task.clients = 300, task.delta = 0.1: .* use fewer clients"):
        class_shares(LABELS, 300, 0.1, seed=0)
