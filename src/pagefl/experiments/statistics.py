"""What is said of runs: mean and spread over seeds, last and best round, convergence, and honest comparisons."""

from collections.abc import Sequence
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from pagefl.runtime.record import Record

from .spec import RunSpec
from .sweep import NO_MATTER

SMOOTH, STILL = 20, 1e-3  # rounds averaged, and the rise that no longer counts: a tenth of a point
# Student's t at 97.5 %, by degrees of freedom; beyond 30 the normal's is close enough.
STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
LOCAL = ("local_accuracy_before", "local_std", "local_worst10")
CURVES = ("global_accuracy", "local_accuracy", *LOCAL)


class Difference(NamedTuple):
    """Of two methods over the same seeds, with a 95 % interval: infinite from a single seed."""

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def verdict(self) -> str:
        """A win is a win only if the interval excludes zero."""
        return "wins" if self.low > 0 else "loses" if self.high < 0 else "no difference shown"


def by_run(runs: Sequence[tuple[RunSpec, list[Record]]]) -> pd.DataFrame:
    """A row for each run."""
    rows = []
    for name, (spec, rounds) in zip(names([spec for spec, _ in runs]), runs, strict=True):
        curves = {name: np.array([r[name] if r[name] is not None else np.nan for r in rounds]) for name in CURVES}
        row = {"task": spec.task["name"], "method": name, "seed": spec.seed}
        for side in ("global", "local"):
            curve = curves[f"{side}_accuracy"]
            row[f"{side}_last"], row[f"{side}_best"] = curve[-1], np.nanmax(curve)
            row[f"{side}_converged"] = converged(curve)
        rows.append(row | {name: curves[name][-1] for name in LOCAL})
    return pd.DataFrame(rows)


def names(specs: Sequence[RunSpec]) -> list[str]:
    """What to call runs so that only those that differ by their seed alone share a name."""
    flat = [_flat(spec.model_dump()) for spec in specs]
    kind = [(spec.task["name"], spec.label) for spec in specs]
    found = []
    for own, settings in zip(kind, flat, strict=True):
        alike = [other for other, its in zip(flat, kind, strict=True) if its == own]
        varied = [
            key
            for key in settings
            if key not in ("seed", *NO_MATTER) and any(other.get(key) != settings[key] for other in alike)
        ]
        found.append(", ".join([own[1], *(f"{key} = {settings[key]}" for key in varied)]))
    return found


def _flat(raw: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    parts = (_flat(value, f"{key}.") if isinstance(value, dict) else {prefix + key: value} for key, value in raw.items())
    return {key: value for part in parts for key, value in part.items()}


def converged(curve: npt.NDArray[np.float64]) -> int:
    """The first round from which on accuracy, averaged over the last rounds, rises no more."""
    sums = np.cumsum(np.concatenate([[0.0], np.nan_to_num(curve)]))
    width = np.minimum(np.arange(1, len(curve) + 1), SMOOTH)
    smooth = (sums[1:] - sums[np.arange(1, len(curve) + 1) - width]) / width
    ahead = np.maximum.accumulate(smooth[::-1])[::-1]
    return int(np.argmax(ahead - smooth <= STILL)) + 1


def difference(frame: pd.DataFrame, method: str, other: str, metric: str) -> Difference:
    """Paired by seed: what one seed's data make easy, they make easy for both."""
    of = frame.set_index(["method", "seed"])[metric]
    seeds = sorted(set(of[method].index) & set(of[other].index)) if {method, other} <= set(frame["method"]) else []
    gains = np.array([of[method, seed] - of[other, seed] for seed in seeds])
    if not len(gains):
        return Difference(np.nan, -np.inf, np.inf, 0)
    mean = float(gains.mean())
    if len(gains) == 1:
        return Difference(mean, -np.inf, np.inf, 1)
    half = (STUDENT[len(gains) - 2] if len(gains) <= 31 else 1.96) * float(gains.std(ddof=1)) / sqrt(len(gains))
    return Difference(mean, mean - half, mean + half, len(gains))


def best_other(frame: pd.DataFrame, method: str, metric: str) -> str | None:
    """The strongest of the other methods by its mean."""
    means = frame[frame["method"] != method].groupby("method", sort=False)[metric].mean()
    return None if means.empty else str(means.idxmax())
