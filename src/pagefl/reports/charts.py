"""Charts of runs. A single run has a line per quantity, several runs have a chart per quantity."""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, inf
from typing import NamedTuple

from pagefl.runtime.numbers import Numbers

from . import axis, svg
from .palette import COLOURS, NEUTRAL
from .quantities import CHARTS, Chart, Quantity
from .svg import DASHES, Dot, Line

FEWEST, MOST, MOST_OF_ALL = 100, 500, 6000  # points per run, and of all runs together
MOST_CLIENTS = 6000  # dots of all runs together
HOUR = 3600.0
AT_CHANCE = 1.1  # a model that is no better than this times chance has learnt next to nothing


class Shown(NamedTuple):
    """A run as charts see it."""

    name: str
    key: str  # of the button that hides it
    colour: str
    columns: Mapping[str, Sequence[float | None]]


class Drawn(NamedTuple):
    """A chart, with what a reader can ask it for."""

    title: str
    about: str
    body: str
    x: str  # the column along the horizontal axis
    labels: Mapping[str, str]  # by column
    switches: Sequence[tuple[str, str, str, str]] = ()  # key, label, colour and dash of each line


def of_run(run: Shown) -> Iterator[Drawn]:
    """Charts of a single run. Each line has its own colour."""
    for number, chart in enumerate(CHARTS):
        shown = [each for each in chart.shown if _known(run, each.column) and _known(run, chart.along)]
        if shown:
            lines = [
                _line(run, each, COLOURS[each.hue], f"line {number} {each.column}", chart.along)
                for each in shown
            ]
            switches = [
                (line.key, q.label, line.colour, line.dash) for line, q in zip(lines, shown, strict=True)
            ]
            labels = {each.column: each.label for each in shown}
            yield Drawn(chart.title, chart.about, _along(chart, lines), chart.along, labels, switches)
        if not number and _known(run, "global_accuracy") and _known(run, "local_accuracy"):
            yield plane([run._replace(colour=COLOURS[0])])


def of_runs(runs: Sequence[Shown]) -> Iterator[Drawn]:
    """Charts of several runs: one quantity each, in which a run has the colour of its method."""
    for number, chart in enumerate(CHARTS):
        for each in chart.shown:
            found = [run for run in runs if _known(run, each.column) and _known(run, chart.along)]
            only_at_the_end = all(_count(run, each.column) < 2 < _count(run, "round") for run in found)
            if found and each.title and not only_at_the_end:
                plain = each._replace(dash="solid")
                lines = [_line(run, plain, run.colour, run.key, chart.along) for run in found]
                yield Drawn(
                    each.title, each.about, _along(chart, lines), chart.along, {each.column: each.label}
                )
        if not number:
            both = [run for run in runs if _known(run, "global_accuracy") and _known(run, "local_accuracy")]
            if both:
                yield plane(both)


def plane(runs: Sequence[Shown]) -> Drawn:
    """Each run's way through the plane of both accuracies, and where it ends."""
    about = "Each run's way: up and to the right is better on both. Filled dots are the ends"
    lines = [Line(r.columns["global_accuracy"], r.columns["local_accuracy"], r.colour, r.key) for r in runs]
    dots, best = [], []
    for run in runs:
        x, y = (_last(run.columns[f"{side}_accuracy"]) for side in ("global", "local"))
        assert x is not None
        assert y is not None
        chance = at_chance(x, _last(run.columns["global_chance"]))
        dots.append(Dot(x, y, run.colour, run.key, hollow=chance))
        if not chance:
            best.append((x, y))
    if any(dot.hollow for dot in dots):
        about += "; a ring is a shared model no better than chance"
    xs = axis.fit("global accuracy", (v for line in lines for v in line.x), bounds=(-0.02, 1.02), pad=0.06)
    ys = axis.fit("local accuracy", (v for line in lines for v in line.y), bounds=(-0.02, 1.02), pad=0.06)
    under = ""
    if len(best) > 1:
        about += "; the grey line joins those that no other run beats on both"
        front = "L".join(f"{xs.at(a):g} {axis.LONG - (ys.at(b) or 0):g}" for a, b in svg.front(best))
        dashed = f"stroke:{NEUTRAL};stroke-dasharray:{DASHES['dot']}"
        under = f'<path class="line thin" style="{dashed}" d="M{front}"/>'
    body = svg.chart(xs, ys, [line._replace(kind="line way") for line in lines], dots, under)
    labels = {"local_accuracy": "local"}
    return Drawn("Personalisation and generalisation", f"{about}.", body, "global_accuracy", labels)


def at_chance(accuracy: float, chance: float | None) -> bool:
    """Whether a model is about as good as naming the most frequent class. Older records have no `chance`."""
    return chance is not None and accuracy <= AT_CHANCE * chance


def clients(runs: Sequence[Shown], accuracies: Sequence[Sequence[float]]) -> str:
    """Each client's local accuracy at the end."""
    most = max(1, MOST_CLIENTS // max(len(runs), 1))
    found = [
        (run.name, run.colour, run.key, svg.thinned(values, most))
        for run, values in zip(runs, accuracies, strict=True)
        if values
    ]
    x = axis.fit("local accuracy", (value for *_, values in found for value in values), bounds=(-0.02, 1.02))
    return svg.rows(x, found)


def columns(rounds: Sequence[Numbers], runs: int) -> dict[str, list[float | None]]:
    """The columns that charts draw, with five digits. Long runs are thinned.

    Of a run whose accuracies were measured in some rounds only, these are drawn.
    """
    most = min(MOST, max(FEWEST, MOST_OF_ALL // max(runs, 1)))
    judged = [record for record in rounds if record["global_accuracy"] is not None]
    rounds = judged if 0 < 2 * len(judged) <= len(rounds) + 1 else rounds
    kept = [*rounds[: -1 : max(1, ceil(len(rounds) / most))], *rounds[-1:]]
    shown = [each for chart in CHARTS for each in chart.shown]
    names = {"round", "global_chance", *(q.column for q in shown), *(q.spread for q in shown if q.spread)}
    found = {name: [_short(record[name]) for record in kept] for name in sorted(names)}
    clock = [record["clock"] for record in kept]
    hours = {"hours": [_short(None if now is None else now / HOUR) for now in clock]}
    return found | hours if any(now is not None for now in clock) else found


def _along(chart: Chart, lines: Sequence[Line]) -> str:
    bounded = "accuracy" in chart.unit
    values: list[float | None] = [value for line in lines for value in line.y]
    for line in lines:
        if line.spread:
            both = zip(line.y, line.spread, strict=True)
            edges = [(y - s, y + s) for y, s in both if y is not None and s is not None]
            values += [min(max(value, 0.0), 1.0) for edge in edges for value in edge]
    rounds = chart.along == "round"
    title = "round" if rounds else "hours"
    x = axis.fit(title, (value for line in lines for value in line.x), whole=rounds, pad=0.01)
    bounds = (0.0, 1.0) if bounded else (-inf, inf)
    return svg.chart(x, axis.fit(chart.unit, values, log=chart.log, bounds=bounds), lines)


def _line(run: Shown, of: Quantity, colour: str, key: str, along: str) -> Line:
    spread = None if of.spread is None else run.columns[of.spread]
    bridges = of.column.startswith("personal")  # taken in some rounds only
    return Line(run.columns[along], run.columns[of.column], colour, key, of.dash, spread, bridges)


def _known(run: Shown, column: str) -> bool:
    return _count(run, column) > 0


def _count(run: Shown, column: str) -> int:
    return sum(value is not None for value in run.columns.get(column, ()))


def _last(values: Sequence[float | None]) -> float | None:
    return next((value for value in reversed(values) if value is not None), None)


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
