"""Comparisons against numbers worked out by hand or by scipy elsewhere."""

from math import isnan, nan

import numpy as np
import pandas as pd
import pytest

from pagefl.experiments import statistics
from pagefl.experiments.statistics import best_other, converged, difference


def frame(**gains: list[float]) -> pd.DataFrame:
    rows = [
        {"method": method, "seed": seed, "global_last": value}
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
    assert (
        difference(frame(b=[0.50, 0.70, 0.90], a=[0.40, 0.61, 0.80]), "a", "b", "global_last").verdict
        == "loses"
    )


@pytest.mark.parametrize(("seeds", "t"), [(3, 4.303), (10, 2.262), (31, 2.042), (60, 2.001)])
def test_intervals_are_never_narrower_than_students(seeds, t):
    """t: the 97.5 % quantile with seeds - 1 degrees of freedom, from a printed table."""
    gains = np.tile([0.1, 0.3], seeds)[:seeds]
    found = difference(frame(a=list(gains), b=[0.0] * seeds), "a", "b", "global_last")
    exact = t * np.sqrt(((gains - gains.mean()) ** 2).sum() / (seeds - 1) / seeds)
    assert exact - 1e-12 <= (found.high - found.low) / 2 <= 1.025 * exact


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ([0.9], [0.1]),
        ([0.9, 0.8], [0.1, 0.2]),
        ([0.70, 0.80], [0.6733, 0.7733]),  # [+2.67, +2.67] was a win
        ([0.9, 0.8, 0.7], [0.8, 0.7, 0.6]),  # equal but for the last bit: no spread from which to judge
        ([0.9, 0.8, nan, 0.7], [0.1, 0.2, 0.1, 0.15]),  # what failed on a seed does not win on the others
        ([0.9, 0.8, 0.7], [nan] * 3),
    ],
)
def test_no_interval_and_no_win_without_three_measured_seeds_that_differ(ours, theirs):
    found = difference(frame(a=ours, b=theirs), "a", "b", "global_last")
    assert isnan(found.low)
    assert isnan(found.high)
    assert found.verdict == "no difference shown"
    assert found.seeds == len(ours)


def test_seeds_are_paired():
    assert difference(frame(a=[0.9]), "a", "b", "global_last").seeds == 0
    assert difference(frame(a=[0.9, 0.8, 0.7], b=[0.1, 0.2]), "a", "b", "global_last").seeds == 2
    with pytest.raises(AssertionError, match="a seed counts once"):
        difference(pd.concat([frame(a=[0.1], b=[0.2])] * 2), "a", "b", "global_last")


def test_best_other():
    runs = frame(a=[0.5, 0.7], b=[0.9, 0.9], c=[0.1, 0.2])
    assert best_other(runs, "b", "global_last") == "a"
    assert best_other(runs, "a", "global_last") == "b"
    assert best_other(frame(a=[1.0]), "a", "global_last") is None


def test_the_best_other_shares_seeds_and_is_measured():
    runs = frame(a=[0.5, 0.6, 0.7], b=[0.4, 0.4, 0.4], c=[nan, 0.9, 0.9], lucky=[0.9])
    assert best_other(runs, "a", "global_last") == "b"
    assert best_other(runs, "c", "global_last") is None
    elsewhere = pd.concat([runs[runs["method"] == "a"], frame(b=[0.9]).assign(seed=7)])
    assert best_other(elsewhere, "a", "global_last") is None


@pytest.mark.parametrize("plateau", [1, 50, 200])
def test_convergence_is_where_the_rise_ends(plateau):
    curve = np.minimum(np.arange(300) / plateau, 1.0) * 0.9
    found = converged(curve)
    assert plateau <= found.round <= plateau + 21  # the mean of the last rounds comes as much later
    assert found.accuracy == pytest.approx(0.9, abs=1e-3)


@pytest.mark.parametrize(
    "curve",
    [
        np.linspace(0, 1, 100),  # was "converged" in its last round
        np.full(20, 0.3),  # too short for anything to have lasted 20 rounds
        np.minimum(np.arange(1000) / 940, 1.0),  # flat for 40 of 1000 rounds on the smoothed curve
        np.linspace(0.5, 0.6, 1000),  # a tenth of a point in ten rounds, to the end
        np.full(100, nan),
        np.array([*np.linspace(0, 1, 30), *[nan] * 100]),  # what was not measured is no plateau
    ],
)
def test_what_still_rises_has_not_converged(curve):
    assert converged(curve) is None


def test_a_gap_in_the_record_does_not_look_like_a_fall():
    curve = np.minimum(np.arange(200) / 50, 1.0)
    holes = curve.copy()
    holes[60:75] = nan
    assert converged(holes) == converged(curve)


def test_summary_counts_converged_and_unfinished_seeds():
    rise, flat = list(np.linspace(0, 1, 100)), [0.5] * 100

    def rounds(curve: list[float]) -> list[dict]:
        return [
            {"round": i, "global_accuracy": a, "local_accuracy": a, "local_std": 0.1}
            for i, a in enumerate(curve, 1)
        ]

    class Spec:
        def __init__(self, seed: int) -> None:
            self.seed = seed

    runs = statistics.by_run([(Spec(0), rounds(rise)), (Spec(1), rounds(flat))])
    runs = pd.concat([runs, pd.DataFrame({"seed": [2], "finished": [False]})]).assign(method="a")
    (row,) = statistics.summary(runs).to_dict("records")
    assert (row["seeds"], row["unfinished"], row["global_seeds_converged"], row["global_converged_mean"]) == (
        2,
        1,
        1,
        1,
    )
    assert row["global_last_mean"] == pytest.approx(0.75)
    assert isnan(row["local_worst10_mean"])  # not in the records
    assert pd.isna(row["global_against"])
