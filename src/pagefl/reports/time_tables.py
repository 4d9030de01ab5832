"""Tables of runs by simulated time."""

from collections.abc import Sequence
from math import isfinite, isnan

import pandas as pd

from pagefl.experiments import by_time
from pagefl.experiments.by_time import THEN
from pagefl.experiments.paper import BUDGETED, UNLIMITED
from pagefl.experiments.scales import Block
from pagefl.experiments.speeds import COLUMNS
from pagefl.experiments.statistics import SIDES, difference
from pagefl.experiments.sweep import Found

from .table import DASH, Table, gained, spread


def of_block(block: Block, found: Sequence[Found]) -> list[Table]:
    frame = by_time.by_run(block, found)
    if frame.empty:
        return []
    hours = by_time.time_of(block) / by_time.HOUR
    return [
        Table(
            f"{block.title}: after {hours:.3g} simulated hours, and hours to what “{UNLIMITED}” ends at",
            ["", *(f"{side}, by then" for side in SIDES), *(f"hours to {side}" for side in SIDES), "seeds"],
            [[str(method), *_by_then(own)] for method, own in frame.groupby("method", sort=False)],
        ),
        Table(
            f"{block.title}: clients",
            ["", "rounds over budget, %", "slowest fifth", "fastest fifth", "slow lose more by"],
            [[method, *_clients(frame, str(method))] for method in frame["method"].unique()],
        ),
        *_against(block.title, frame),
    ]


def _by_then(own: pd.DataFrame) -> list[str]:
    return [*_per_cent(own, THEN), *(_hours(own[f"{side}_hours"]) for side in SIDES), str(len(own))]


def _clients(frame: pd.DataFrame, method: str) -> list[str]:
    more = 100 * by_time.slow_lose(frame, method)
    own = frame[frame["method"] == method]
    return [*_per_cent(own, COLUMNS), DASH if isnan(more) or method == UNLIMITED else f"{more + 0.0:+.2f}"]


def _against(title: str, frame: pd.DataFrame) -> list[Table]:
    """The row with a budget against each of the others: points, and how many times sooner it is there."""
    others = [str(name) for name in frame["method"].unique() if name != BUDGETED]
    if not others or BUDGETED not in set(frame["method"]):
        return []
    rows = [
        [
            other,
            *(gained(difference(frame, BUDGETED, other, metric)) for metric in THEN),
            *(_times(*by_time.sooner(frame, other, side)) for side in SIDES),
        ]
        for other in others
    ]
    columns = [*(f"{side}, by then" for side in SIDES), *(f"times sooner, {side}" for side in SIDES)]
    return [
        Table(f"{title}: “{BUDGETED}” against each other row, points and 95 % interval", ["", *columns], rows)
    ]


def _per_cent(own: pd.DataFrame, metrics: Sequence[str]) -> list[str]:
    """The mean, and the standard deviation over seeds."""
    values = [100 * own[metric].astype(float) for metric in metrics]
    return [spread(each.mean(skipna=False), each.std(skipna=False), ".2f") for each in values]


def _hours(hours: pd.Series) -> str:
    """The mean over the seeds that get there, and how many do."""
    there = [value for value in hours if isfinite(value)]
    reached = f"({len(there)} of {hours.count()})"
    return f"{sum(there) / len(there):.3g} {reached}" if there else f"{DASH} {reached}"


def _times(ratio: float, least: bool, seeds: int) -> str:
    return f"{'at least ' * least}{ratio:.2f} (seeds: {seeds})" if seeds else DASH
