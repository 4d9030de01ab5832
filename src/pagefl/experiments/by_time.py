"""Runs by simulated time: accuracy after the same time, and the time to the same accuracy."""

from collections.abc import Sequence
from math import inf, nan
from typing import Any

import numpy as np
import pandas as pd

from pagefl.game.account import ROUNDING
from pagefl.runtime import numbers
from pagefl.runtime.numbers import Numbers

from . import sweep
from .paper import BUDGETED, UNLIMITED
from .scales import Block
from .speeds import COLUMNS
from .statistics import SIDES, Curve
from .sweep import Found

HOUR = 3600.0
THEN = tuple(f"{side}_then" for side in SIDES)


def time_of(block: Block) -> float:
    """Seconds at which rows are compared: when those end that have a deadline. 0: there are none."""
    specs = [spec for row in block.rows.values() for spec in row if spec.devices.barrier == "deadline"]
    return max((spec.rounds * spec.devices.deadline for spec in specs), default=0.0)


def curve(rounds: Sequence[Numbers], side: str) -> tuple[Curve, Curve]:
    """Hours and accuracies of the rounds in which both are known."""
    pairs = [(entry["clock"], entry[f"{side}_accuracy"]) for entry in rounds]
    known = np.array([pair for pair in pairs if None not in pair], np.float64).reshape(-1, 2)
    return known[:, 0] / HOUR, known[:, 1]


def at(hours: Curve, values: Curve, when: Curve) -> Curve:
    """The last value known at each of these hours; NaN before the first."""
    places = np.searchsorted(hours, when, side="right") - 1
    return np.where(places < 0, nan, values[places])


def by_run(block: Block, found: Sequence[Found]) -> pd.DataFrame:
    """One row for each finished run. `global_hours`: until it reaches what the unlimited run of the same seed
    ends at; infinite if it does not."""
    curves: dict[tuple[str, int], dict[str, tuple[Curve, Curve]]] = {}
    rows: list[dict[str, Any]] = []
    for method, specs in block.rows.items():
        for one in sweep.of(specs, found):
            rounds = numbers.of_rounds(one.rounds, one.name)
            curves[method, one.spec.seed] = {side: curve(rounds, side) for side in SIDES}
            rows.append(
                {"method": method, "seed": one.spec.seed, **{name: rounds[-1][name] for name in COLUMNS}}
            )
    end = np.array([time_of(block) / HOUR * (1 + ROUNDING)])
    for row in rows:
        own, best = curves[row["method"], row["seed"]], curves.get((UNLIMITED, row["seed"]))
        for side in SIDES:
            hours, values = own[side]
            row[f"{side}_then"] = at(hours, values, end)[0]
            row["end"] = hours[-1]
            row[f"{side}_hours"] = reached(hours, values, best[side][1][-1]) if best else nan
    return pd.DataFrame(rows)


def reached(hours: Curve, values: Curve, target: float) -> float:
    enough = values >= target
    return float(hours[enough.argmax()]) if enough.any() else inf


def sooner(frame: pd.DataFrame, other: str, side: str) -> tuple[float, bool, int]:
    """How many times sooner the row with a budget is there than the other: the geometric mean over the seeds
    on which it gets there, whether it is at least that (the other does not get there), and their number."""
    ours, theirs = (frame[frame["method"] == name].set_index("seed") for name in (BUDGETED, other))
    seeds = [seed for seed in ours.index if seed in theirs.index and np.isfinite(ours[f"{side}_hours"][seed])]
    late = theirs.loc[seeds, f"{side}_hours"]
    hours = late.where(np.isfinite(late), theirs.loc[seeds, "end"])
    ratios = np.log((hours / ours.loc[seeds, f"{side}_hours"]).to_numpy(np.float64))
    return (float(np.exp(ratios.mean())) if seeds else nan), bool(np.isinf(late).any()), len(seeds)


def slow_lose(frame: pd.DataFrame, method: str) -> float:
    """By how much more the slowest fifth loses against the unlimited runs than the fastest, in accuracy."""
    own, best = (frame[frame["method"] == name].set_index("seed") for name in (method, UNLIMITED))
    lost = {name: (best[name] - own[name]).dropna() for name in ("local_slowest", "local_fastest")}
    return float((lost["local_slowest"] - lost["local_fastest"]).mean())
