"""Charts as inline SVG: they need no script, no library and no network, and follow the page's colours.

A chart's lines are drawn in a square of LONG by LONG that the browser stretches; texts stand beside it, as
HTML, and are not stretched. Lines of no length with round ends are dots.
"""

from collections.abc import Iterable, Sequence
from html import escape
from math import ceil
from statistics import quantiles
from typing import NamedTuple

from . import axis
from .axis import LONG, Axis

Values = Sequence[float | None]
DASHES = {"solid": "", "dash": "7 4", "dot": "2 4"}
FEW = 30  # points of a line that are drawn as dots, too, if there are gaps between them
APART = 18  # in units of LONG: dots that are nearer than this would hide one another


class Line(NamedTuple):
    x: Values
    y: Values
    colour: str
    key: str  # lines of one key are hidden together
    dash: str = "solid"
    band: tuple[Values, Values] | None = None  # its lower and its upper edge
    bridges: bool = False  # goes on across gaps
    kind: str = "line"  # its CSS class


class Dot(NamedTuple):
    x: float
    y: float
    colour: str
    key: str
    hollow: bool = False


def chart(x: Axis, y: Axis, lines: Sequence[Line], dots: Sequence[Dot] = (), under: str = "") -> str:
    """The inside of a chart's frame. `under`: paths that lie below the lines."""
    drawn = "".join(_band(x, y, line) for line in lines if line.band)
    drawn += "".join(_path(x, y, line) for line in lines) + _dots(x, y, dots)
    return frame(x, y, under + drawn)


def frame(x: Axis, y: Axis | None, drawn: str, rows: Sequence[str] = ()) -> str:
    """Axes around what is drawn. `rows`: names instead of a second axis of numbers."""
    grid = "".join(f"M{x.at(tick):g} 0V{LONG}" for tick in x.ticks)
    marks = "".join(
        f'<i class="x" style="left:{_share(x, tick)}%">{axis.label(tick)}</i>' for tick in x.ticks
    )
    title = ""
    if y is not None:
        grid += "".join(f"M0 {LONG - (y.at(tick) or 0):g}H{LONG}" for tick in y.ticks)
        marks += "".join(
            f'<i class="y" style="top:{100 - _share(y, tick):g}%">{axis.label(tick)}</i>' for tick in y.ticks
        )
        title = f'<span class="title y">{escape(y.title)}</span>'
    for number, name in enumerate(rows):
        middle = 100 * (number + 0.5) / len(rows)
        place = f'class="y" title="{escape(name)}" style="top:{middle:.5g}%"'
        marks += f"<i {place}><bdi>{escape(name)}</bdi></i>"
    ranges = f'data-x="{x.low:.8g} {x.high:.8g}"' + (f' data-y="{y.low:.8g} {y.high:.8g}"' if y else "")
    return (
        f'{title}<div class="plot" {ranges}><svg viewBox="0 0 {LONG} {LONG}" preserveAspectRatio="none" '
        f'aria-hidden="true"><path class="grid" d="{grid}"/>{drawn}</svg>{marks}</div>'
        f'<span class="title x">{escape(x.title)}</span>'
    )


def _share(of: Axis, tick: float) -> float:
    return round(100 * (of.at(tick) or 0) / LONG, 2)


def _path(x: Axis, y: Axis, line: Line) -> str:
    points = [_point(x, y, *pair) for pair in zip(line.x, line.y, strict=True)]
    known = [point for point in points if point is not None]
    d, joined, alone = "", False, []
    for before, point, after in zip([None, *points], points, [*points[1:], None], strict=False):
        if point is None:
            joined = joined and line.bridges
            continue
        d += f"{'L' if joined else 'M'}{point[0]:g} {LONG - point[1]:g}"
        joined = True
        if before is None and after is None:
            alone.append(point)
    dash = f";stroke-dasharray:{DASHES[line.dash]}" if DASHES[line.dash] else ""
    style = f"stroke:{line.colour}"
    marked = alone if not line.bridges else known if len(known) <= FEW else []
    spots = "".join(f"M{px:g} {LONG - py:g}h0" for px, py in marked)
    data = f'data-key="{escape(line.key)}"'
    return (f'<path class="{line.kind}" {data} style="{style}{dash}" d="{d}"/>' if d else "") + (
        f'<path class="dot small" {data} style="{style}" d="{spots}"/>' if spots else ""
    )


def _point(x: Axis, y: Axis, across: float | None, up: float | None) -> tuple[float, float] | None:
    place = x.at(across), y.at(up)
    return None if place[0] is None or place[1] is None else (place[0], place[1])


def _band(x: Axis, y: Axis, line: Line) -> str:
    """Around the line, cut off at the edges of the chart. It has no gaps."""
    assert line.band is not None
    low: list[tuple[float, float]] = []
    high: list[tuple[float, float]] = []
    for across, *edges in zip(line.x, *line.band, strict=True):
        if across is None or None in edges:
            continue
        for edge, value in zip((low, high), edges, strict=True):
            edge.append((x.at(across) or 0, min(max(y.at(value) or 0, 0), LONG)))
    d = "L".join(f"{px:g} {LONG - py:g}" for px, py in [*low, *reversed(high)])
    return (
        f'<path class="band" data-key="{escape(line.key)}" style="fill:{line.colour}" d="M{d}Z"/>'
        if d
        else ""
    )


def _dots(x: Axis, y: Axis, dots: Sequence[Dot]) -> str:
    """Those that lie on one another become rings around each other: none is hidden."""
    places = [(x.at(dot.x) or 0.0, y.at(dot.y) or 0.0) for dot in dots]
    drawn = ""
    for number, (dot, (px, py)) in enumerate(zip(dots, places, strict=True)):
        covered = sum(
            abs(px - other[0]) < APART and abs(py - other[1]) < APART for other in places[number + 1 :]
        )
        size = 11 + 6 * covered
        d, data = f"M{px:g} {LONG - py:g}h0", f'data-key="{escape(dot.key)}"'
        drawn += f'<path class="dot" {data} style="stroke:{dot.colour};stroke-width:{size}" d="{d}"/>'
        if dot.hollow:
            drawn += f'<path class="dot hole" {data} style="stroke-width:{size - 4}" d="{d}"/>'
    return drawn


def rows(x: Axis, values: Sequence[tuple[str, str, str, Sequence[float]]]) -> str:
    """Each row has a name, a colour, a key and numbers: a dot each, and a box of their quartiles."""
    drawn, height = "", LONG / max(len(values), 1)
    for number, (_, colour, key, of) in enumerate(values):
        middle = height * (number + 0.5)
        spots = "".join(
            f"M{x.at(value):g} {middle + height * 0.3 * _jitter(i):.1f}h0" for i, value in enumerate(of)
        )
        low, mid, high = quantiles(of, n=4, method="inclusive") if len(of) > 1 else [*of, *of, *of][:3]
        top, bottom, left, right = middle - height * 0.36, middle + height * 0.36, x.at(low), x.at(high)
        box = f"M{left} {top:.1f}H{right}V{bottom:.1f}H{left}ZM{x.at(mid)} {top:.1f}V{bottom:.1f}"
        data, style = f'data-key="{escape(key)}"', f'style="stroke:{colour}"'
        drawn += f'<path class="dot client" {data} {style} d="{spots}"/>'
        drawn += f'<path class="line" {data} {style} d="{box}"/>'
    return frame(x, None, drawn, [name for name, *_ in values])


def _jitter(number: int) -> float:
    """Between -1 and 1, spread evenly however many there are."""
    return 2 * (number * 0.6180339887498949 % 1) - 1


def front(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other beats on both axes, from left to right."""
    found = [*points]
    best = {(a, b) for a, b in found if not any(c >= a and d >= b and (c > a or d > b) for c, d in found)}
    return sorted(best)


def thinned(values: Sequence[float], most: int) -> list[float]:
    """At most about `most` values, evenly spaced by rank, so that quartiles and extremes are kept."""
    if len(values) <= most:
        return [*values]
    ordered = sorted(values)
    return ordered[: -1 : ceil(len(values) / most)] + ordered[-1:]
