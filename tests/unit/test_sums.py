"""Sums have the same bits wherever the rows are."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagefl.core import sums
from pagefl.core.jobs import group_size, pieces
from pagefl.core.uploaded import Here, Uploaded


@st.composite
def federations(draw):
    """Rows of all clients, who takes part with which weights, and where blocks begin."""
    clients = draw(st.integers(1, 70))
    seed = draw(st.integers(0, 2**16))
    chance = np.random.default_rng(seed)
    rows = torch.from_numpy(chance.normal(size=(clients, 7)).astype(np.float32))
    taking = np.flatnonzero(chance.random(clients) < draw(st.sampled_from([0.2, 0.7, 1.0])))
    weights = torch.from_numpy(chance.random(len(taking)).astype(np.float32))
    cuts = sorted({0, clients, *draw(st.lists(st.integers(0, clients), max_size=5))})
    return rows, taking, weights, cuts


@given(federations())
def test_blocks_add_up_to_the_bits_of_the_whole(federation):
    rows, taking, weights, cuts = federation
    whole = sums.weighted(rows, taking, taking, weights)
    parts = []
    for start, stop in pairwise(cuts):
        here = (taking >= start) & (taking < stop)
        parts.append(sums.partly(rows[start:stop], start, taking[here], weights[torch.from_numpy(here)]))
        assert len(parts[-1].rows) <= 2 * max(1, (stop - start)).bit_length()
    assert torch.equal(sums.joined(parts[::-1]), whole)


def by_hand(leaves: dict[int, np.ndarray], start: int, size: int) -> np.ndarray | None:
    """The tree, node by node."""
    if size == 1:
        return leaves.get(start)
    left, right = (by_hand(leaves, at, size // 2) for at in (start, start + size // 2))
    if left is None or right is None:
        return right if left is None else left
    return left + right


@given(federations())
def test_a_sum_is_the_trees(federation):
    rows, taking, weights, _ = federation
    leaves = {int(i): np.float32(w) * rows[i].numpy() for i, w in zip(taking, weights.numpy(), strict=True)}
    expected = by_hand(leaves, 0, 128)
    found = sums.weighted(rows, taking, taking, weights).numpy()
    assert np.array_equal(found, np.zeros(7) if expected is None else expected)


def test_wide_rows_are_added_up_in_all_columns():
    rows = torch.arange(3 * 1300, dtype=torch.float64).view(3, 1300)
    found = sums.weighted(rows, np.arange(3), np.arange(3), torch.tensor([0.5, 0.25, 2.0]))
    exact = [Fraction(a) / 2 + Fraction(b) / 4 + 2 * Fraction(c) for a, b, c in rows.T.tolist()]
    assert found.tolist() == [float(value) for value in exact]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_floats_are_added_up_as_long_ones(dtype):
    rows = torch.ones(300, 2, dtype=dtype) / 3
    found = sums.weighted(rows, np.arange(300), np.arange(300), torch.ones(300))
    assert found.dtype == dtype
    assert torch.allclose(found.float(), rows.float().sum(0), rtol=1e-2)


def test_uploads_are_a_mapping_that_can_be_summed():
    held = {"model": torch.tensor([[1.0, 2.0], [3.0, 4.0], [10.0, 20.0]]), "length": torch.ones(3, 1)}
    uploads = Uploaded(Here(held), np.array([0, 2]))
    assert list(uploads) == ["model", "length"]
    assert uploads["model"].tolist() == [[1.0, 2.0], [10.0, 20.0]]
    assert uploads.sum("model", torch.tensor([0.5, 0.25])).tolist() == [3.0, 6.0]
    assert uploads.mean("model").tolist() == [5.5, 11.0]
    with pytest.raises(KeyError):
        uploads["other"]


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 40), st.integers(1, 20), st.randoms())
def test_pieces_cover_all_and_stay_within_groups(clients, groups, chunk, size, chance):
    group = group_size(clients, groups, chunk)
    assert group % chunk == 0
    assert group == 1 if chunk == 1 else -(-clients // group) <= groups
    numbers = np.array(sorted(chance.sample(range(clients), chance.randint(1, clients))))
    steps = np.array([chance.randint(1, 9) for _ in numbers])
    found = pieces(numbers, np.arange(group, clients, group), size, steps)
    assert sorted(np.concatenate(found).tolist()) == list(range(len(numbers)))
    for piece in found:
        assert len(piece) <= size
        assert len(set((numbers[piece] // group).tolist())) == 1
        assert (np.diff(steps[piece]) <= 0).all()
