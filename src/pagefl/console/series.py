"""The rounds of a run as columns of numbers, thinned to as many points as a chart can show."""

import json
from pathlib import Path
from typing import Any

from pagefl.core.errors import UserError
from pagefl.game.rewards import DemandRatio
from pagefl.runtime import numbers
from pagefl.runtime.record import ROUNDS

from .lines import Tail, Unreadable

MOST = 1500  # points; when there are more, two become one
MOST_MARKS = 500
WORST = ("quarantined", "missing", "late", "seconds")  # a point shows the worst of its rounds, else the last
Point = dict[str, float | None]


class Series:
    """Follows the records of a run while it writes them."""

    def __init__(self, path: Path) -> None:
        self.tail = Tail(path / ROUNDS)
        self.generation = 0  # of points: they were thinned again, or the run began again
        self.problem: str | None = None
        self._clear()

    def _clear(self) -> None:
        self.points: list[Point] = []
        self.stride, self.count, self.seconds = 1, 0, 0.0  # rounds in a point, rounds and their time in all
        self.bias, self.marks = "", []  # type: str, list[tuple[float, str]]
        self.last: Point = {}  # the last known value of each column
        self.generation += 1

    def look(self) -> None:
        """Read what was added to the records."""
        while self.problem is None:
            try:
                again, lines = self.tail.new()
                if again:
                    self._clear()
                for line in lines:
                    self._add(json.loads(line))
            except (ValueError, RecursionError) as error:
                known = isinstance(error, UserError | Unreadable)
                self.problem = str(error) if known else f"{self.tail.path}: a line is not a round's record"
                return
            if not lines:
                return

    def columns(self, first: int = 0) -> dict[str, list[float | None]]:
        """Points from this one on. Columns of which nothing is known are left out."""
        return {
            name: [point[name] for point in self.points[first:]]
            for name in ("round", *numbers.RANGES)
            if self.last.get(name) is not None
        }

    def _add(self, record: Any) -> None:
        found = numbers.of_rounds([record], str(self.tail.path))[0]
        point: Point = {name: None if value is None else _short(value) for name, value in found.items()}
        self._mark(found["round"] or 0, record.get("bias"))
        self.last |= {name: value for name, value in point.items() if value is not None}
        self.seconds += point["seconds"] or 0.0
        if self.count % self.stride == 0:
            self.points.append(point)
        else:
            self.points[-1] = _merged(self.points[-1], point)
        self.count += 1
        if len(self.points) > MOST:
            pairs = zip(self.points[::2], [*self.points[1::2], {}], strict=False)
            self.points = [_merged(one, other) if other else one for one, other in pairs]
            self.stride *= 2
            self.generation += 1

    def _mark(self, round: float, bias: object) -> None:
        """Remember rounds in which the demand ratio changed."""
        if not isinstance(bias, str) or bias == self.bias or len(bias) > 100:
            return
        try:
            DemandRatio.parse(bias)
        except ValueError:
            return
        if self.bias and len(self.marks) < MOST_MARKS:
            self.marks.append((round, bias))
        self.bias = bias


def _merged(one: Point, other: Point) -> Point:
    return {name: _joined(name, one[name], other[name]) for name in other}


def _joined(name: str, one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return one if other is None else other
    return max(one, other) if name in WORST else other


def _short(value: float) -> float:
    return float(f"{value:.5g}") if abs(value) < 1e5 else float(f"{value:.10g}")
