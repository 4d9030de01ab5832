"""Statistics of runs: mean and spread over seeds, last and best round, convergence, and comparisons."""

from collections.abc import Sequence
from math import isfinite, sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from pagefl.runtime import numbers
from pagefl.runtime.record import Record

from .spec import RunSpec

SMOOTH, STILL = 20, 1e-3  # rounds averaged, and the largest rise that is ignored: a tenth of a point
PLATEAU = 0.05  # share of the run that a plateau must last, and at least SMOOTH rounds
ENOUGH = 3  # shared seeds that an interval needs
# Student's t at 97.5 %, by degrees of freedom. Beyond 30 the last value is used, which makes intervals
# slightly too wide.
STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
SIDES = ("global", "local")
LOCAL = {  # of the last round, with their labels in tables
    "local_accuracy_before": "local before training",
    "local_std": "std over clients",
    "local_worst10": "worst tenth",
}
PERSONAL = ("personal_accuracy", "gradients", "gradients_personal")  # of the last round
CURVES = ("global_accuracy", "local_accuracy", *LOCAL, *PERSONAL)
METRICS = ("global_last", "global_best", "local_last", "local_best", *LOCAL, *PERSONAL)
CONVERGENCE = tuple(f"{side}_{what}" for side in SIDES for what in ("converged", "plateau"))
Curve = npt.NDArray[np.float64]


class Plateau(NamedTuple):
    """The round in which a curve stopped rising, and the smoothed accuracy in it."""

    round: int
    accuracy: float


class Difference(NamedTuple):
    """Difference of two methods over the seeds they share, with a 95 % interval; NaN if there is none."""

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def verdict(self) -> str:
        """A method wins or loses only if the interval excludes zero."""
        return "wins" if self.low > 0 else "loses" if self.high < 0 else "no difference shown"


def curves(rounds: Sequence[Record]) -> dict[str, Curve]:
    """Recorded values by round; NaN where nothing plausible was recorded."""
    known = numbers.of_rounds(rounds, "the run")
    return {name: np.array([entry[name] for entry in known], dtype=np.float64) for name in CURVES}


def by_run(runs: Sequence[tuple[RunSpec, Sequence[Record]]]) -> pd.DataFrame:
    """One row per finished run."""
    rows = []
    for spec, rounds in runs:
        of = curves(rounds)
        row: dict[str, Any] = {"seed": spec.seed, "finished": True}
        for side in SIDES:
            curve = of[f"{side}_accuracy"]
            row[f"{side}_last"], row[f"{side}_best"] = curve[-1], pd.Series(curve).max()
            row[f"{side}_converged"], row[f"{side}_plateau"] = converged(curve) or (np.nan, np.nan)
        rows.append(row | {name: of[name][-1] for name in (*LOCAL, *PERSONAL)})
    return pd.DataFrame(rows, columns=["seed", "finished", *METRICS, *CONVERGENCE])


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per method, for runs on the same data.

    A metric that one seed lacks has no mean: leaving out the seeds on which a method failed would favour it.
    """
    done = frame[frame["finished"].astype(bool)]
    rows = []
    for method in map(str, frame["method"].unique()):
        own = done[done["method"] == method]
        row: dict[str, Any] = {"method": method, "seeds": len(own)}
        row["unfinished"] = int((frame["method"] == method).sum()) - len(own)
        for metric in METRICS:
            row[f"{metric}_mean"], row[f"{metric}_std"] = (
                own[metric].mean(skipna=False),
                own[metric].std(skipna=False),
            )
        for side in SIDES:
            row[f"{side}_seeds_converged"] = int(own[f"{side}_converged"].count())
            for what in ("converged", "plateau"):
                row[f"{side}_{what}_mean"] = own[f"{side}_{what}"].mean()
                row[f"{side}_{what}_std"] = own[f"{side}_{what}"].std()
        for side in SIDES:
            row |= _against(done, method, side)
        rows.append(row)
    return pd.DataFrame(rows)


def _against(done: pd.DataFrame, method: str, side: str) -> dict[str, Any]:
    metric = f"{side}_last"
    other = best_other(done, method, metric)
    found = difference(done, method, other, metric) if other else Difference(np.nan, np.nan, np.nan, 0)
    return {
        f"{side}_against": other,
        f"{side}_difference": found.mean,
        f"{side}_low": found.low,
        f"{side}_high": found.high,
        f"{side}_seeds_shared": found.seeds,
        f"{side}_verdict": found.verdict if other else None,
    }


def converged(curve: Curve) -> Plateau | None:
    """The first round after which the smoothed curve does not rise; None if it still rose at the end."""
    smooth = pd.Series(curve).rolling(SMOOTH, min_periods=1).mean().to_numpy()
    ahead = np.fmax.accumulate(smooth[::-1])[::-1]
    flat = ahead - smooth <= STILL
    if not flat.any():
        return None
    first, last = int(np.argmax(flat)), int(np.flatnonzero(~np.isnan(curve))[-1])
    if last - first < max(SMOOTH, PLATEAU * len(curve)):
        return None
    return Plateau(first + 1, float(smooth[first]))


def difference(frame: pd.DataFrame, method: str, other: str, metric: str) -> Difference:
    """The difference, paired by seed: the data of a seed are equally hard for both methods."""
    ours, theirs = (
        frame[frame["method"] == name].set_index("seed")[metric].astype(float) for name in (method, other)
    )
    assert all(own.index.is_unique for own in (ours, theirs)), "a seed counts once"
    shared = ours.index.intersection(theirs.index)
    gains = ours[shared].to_numpy() - theirs[shared].to_numpy()
    mean = float(gains.mean()) if len(gains) else np.nan
    # Equal gains on all seeds have no spread to estimate. Small test sets often give equal gains, so they
    # show nothing.
    if len(gains) < ENOUGH or not isfinite(mean) or np.ptp(gains) <= 1e-9 * max(1.0, np.abs(gains).max()):
        return Difference(mean, np.nan, np.nan, len(gains))
    half = STUDENT[min(len(gains) - 1, len(STUDENT)) - 1] * float(gains.std(ddof=1)) / sqrt(len(gains))
    return Difference(mean, mean - half, mean + half, len(gains))


def best_other(frame: pd.DataFrame, method: str, metric: str) -> str | None:
    """The strongest other method on shared seeds. Methods with too few of them are the last choice."""
    others = [str(name) for name in frame["method"].unique() if name != method]
    found = {other: difference(frame, method, other, metric) for other in others}
    measured = {other: one for other, one in found.items() if isfinite(one.mean)}
    enough = {other: one for other, one in measured.items() if one.seeds >= ENOUGH}
    candidates = enough or measured
    return min(candidates, key=lambda other: candidates[other].mean) if candidates else None
