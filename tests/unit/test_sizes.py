"""The cap on size claims, against a search for it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefl.game.sizes import capped


def searched(sizes, share):
    """The largest cap that leaves nobody more than their share, by bisection."""
    low, high = float(sizes.min()), float(sizes.max())
    for _ in range(200):
        cap = (low + high) / 2
        held = np.minimum(sizes, cap)
        low, high = (cap, high) if held.max() <= share * held.sum() else (low, cap)
    return np.minimum(sizes, high)


@given(st.lists(st.integers(1, 10**9), min_size=3, max_size=12), st.floats(0.35, 1.0))
def test_the_largest_sizes_that_may_be(sizes, share):
    sizes = np.array(sizes, float)
    found = capped(sizes, share)
    assert found == pytest.approx(searched(sizes, share), rel=1e-6)
    assert found.max() <= share * found.sum() * (1 + 1e-9)
    assert capped(found, share) == pytest.approx(found)


@pytest.mark.parametrize(
    ("sizes", "share", "expected"),
    [
        ([10, 20, 1e9], 0.5, [10, 20, 30]),
        ([10, 10, 1e9, 1e9], 0.4, [10, 10, 40, 40]),
        ([10, 20, 30], 1.0, [10, 20, 30]),
        ([10, 20], 0.5, [10, 20]),
        ([7], 0.5, [7]),
        ([], 0.5, []),
    ],
)
def test_by_hand(sizes, share, expected):
    assert capped(np.array(sizes, float), share) == pytest.approx(expected)
