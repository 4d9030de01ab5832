"""Synthetic's compiled draws against NumPy's own generators."""

from math import exp

import numpy as np
import pytest
import torch
from numba import njit

from pagefl.core import philox, rng
from pagefl.data.federated import FederatedData
from pagefl.data.synthetic import SyntheticSource, synthetic


@njit
def normals(key, count):
    words, at = philox.begun()
    found = np.empty(count)
    philox.normals(key, words, at, found)
    return found


@pytest.mark.parametrize("seed", [0, 1, 2**32 + 5, 2**64 - 1])
def test_normal_numbers_are_numpys(seed):
    """So many that some are in the tail, beyond 3.65."""
    expected = np.random.Generator(np.random.Philox(seed)).standard_normal(100_000)
    assert np.abs(expected).max() > philox.TAIL
    assert np.array_equal(normals(philox.keys(np.array([seed], np.uint64))[0], len(expected)), expected)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 8, 9, 375, 5000])
def test_permutations_are_numpys(count):
    for seed in range(5):
        found = np.empty(count, np.int64)
        philox.permute(philox.keys(np.array([seed], np.uint64))[0], found)
        assert np.array_equal(found, np.random.Generator(np.random.Philox(seed)).permutation(count))


def plain(clients, seed, alpha, beta, theta):
    """Li et al.'s recipe, one client after the other, split by what splits any data."""
    truth = rng.stream(seed, "synthetic", "truth")
    weights, bias = truth.normal(size=(30, 30)), truth.normal(size=30)
    made = []
    for number in range(clients):
        own = rng.stream(seed, "synthetic", "client", number)
        centre = own.normal(own.normal(0.0, beta), 1.0, 30)
        size = max(10, round(375 * exp(theta * own.normal())))
        x = own.standard_normal((size, 30)) * np.arange(1, 31) ** -0.6 + centre
        shift = own.normal(own.normal(0.0, alpha), 1.0, (31, 30)) if alpha else np.zeros((31, 30))
        y = np.argmax(x @ (weights + shift[:-1]) + bias + shift[-1], axis=1)
        made.append((torch.from_numpy(x).float(), torch.from_numpy(y)))
    return FederatedData.split(made, test=0.24, server=0.2, seed=seed)


@pytest.mark.parametrize("spreads", [(0.0, 1.0, 0.0), (0.5, 0.5, 0.0), (1.0, 1.0, 1.0)])
def test_the_data_are_those_of_a_plain_version(spreads):
    expected, found = plain(12, 3, *spreads), synthetic(12, 3, *spreads)
    for role in ("train", "test", "game", "server_test"):
        theirs, ours = getattr(expected, role), getattr(found, role)
        assert all(torch.equal(getattr(ours, name), getattr(theirs, name)) for name in ("x", "y", "starts"))
    fetched = SyntheticSource(12, 3, *spreads).fetch(np.array([7, 0, 11]))
    for theirs, ours in ((expected.train, fetched.train), (expected.test, fetched.test)):
        for place, number in enumerate((7, 0, 11)):
            pairs = zip(ours.client(place), theirs.client(number), strict=True)
            assert all(torch.equal(one, other) for one, other in pairs)
