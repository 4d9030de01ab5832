"""Comparisons against numbers worked out by hand or by scipy elsewhere."""

import numpy as np
import pandas as pd
import pytest

from pagefl.experiments.statistics import best_other, converged, difference


def frame(**gains: list[float]) -> pd.DataFrame:
    rows = [
        {"task": "t", "method": method, "seed": seed, "global_last": value}
        for method, values in gains.items()
        for seed, value in enumerate(values)
    ]
    return pd.DataFrame(rows)


def test_paired_difference_is_students():
    """scipy.stats.ttest_rel([0.5, 0.7, 0.9], [0.4, 0.5, 0.8]).confidence_interval(): (-0.0101, 0.2768)"""
    found = difference(frame(a=[0.5, 0.7, 0.9], b=[0.4, 0.5, 0.8]), "a", "b", "global_last")
    assert found.mean == pytest.approx(0.4 / 3)
    assert (found.low, found.high) == pytest.approx((-0.0101, 0.2768), abs=1e-4)
    assert found.verdict == "no difference shown"  # three seeds that all rise are not enough
    close = difference(frame(a=[0.50, 0.70, 0.90], b=[0.40, 0.61, 0.80]), "a", "b", "global_last")
    assert close.verdict == "wins"
    assert difference(frame(b=[0.50, 0.70, 0.90], a=[0.40, 0.61, 0.80]), "a", "b", "global_last").verdict == "loses"


def test_one_seed_shows_nothing_and_seeds_are_paired():
    assert difference(frame(a=[0.9], b=[0.1]), "a", "b", "global_last").verdict == "no difference shown"
    assert difference(frame(a=[0.9]), "a", "b", "global_last").seeds == 0
    assert difference(frame(a=[0.9, 0.8, 0.7], b=[0.1, 0.2]), "a", "b", "global_last").seeds == 2


def test_best_other():
    runs = frame(a=[0.5, 0.7], b=[0.9, 0.9], c=[0.1, 0.2])
    assert best_other(runs, "b", "global_last") == "a"
    assert best_other(runs, "a", "global_last") == "b"
    assert best_other(frame(a=[1.0]), "a", "global_last") is None


@pytest.mark.parametrize("plateau", [1, 50, 200])
def test_convergence_is_where_the_rise_ends(plateau):
    curve = np.minimum(np.arange(300) / plateau, 1.0) * 0.9
    assert plateau <= converged(curve) <= plateau + 21  # the mean of the last rounds comes as much later
    assert converged(np.full(10, 0.3)) == 1
    assert converged(np.linspace(0, 1, 100)) == 100
