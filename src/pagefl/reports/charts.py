"""Charts of runs. A single run has a line per quantity, several runs have a chart per quantity."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import NamedTuple

from pagefl.runtime.by_class import ByClass, drawn
from pagefl.runtime.numbers import Numbers

from . import axis, svg
from .palette import COLOURS, NEUTRAL
from .quantities import CHARTS, Chart, Quantity, class_column
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


def of_run(run: Shown, wanted: Sequence[Chart] = CHARTS) -> Iterator[Drawn]:
    """Charts of a single run. Each line has its own colour."""
    for chart in wanted:
        shown = [each for each in chart.shown if _known(run, each.column) and _known(run, chart.along)]
        if shown:
            lines = [
                _line(run, each, COLOURS[each.hue], f"{chart.title} {each.column}", chart.along)
                for each in shown
            ]
            switches = [
                (line.key, q.label, line.colour, line.dash) for line, q in zip(lines, shown, strict=True)
            ]
            labels = {each.column: each.label for each in shown}
            yield Drawn(chart.title, chart.about, _along(chart, lines), chart.along, labels, switches)
        if chart is CHARTS[0] and _known(run, "global_accuracy") and _known(run, "local_accuracy"):
            yield plane([run._replace(colour=COLOURS[0])])


def of_runs(runs: Sequence[Shown]) -> Iterator[Drawn]:
    """Charts of several runs: one quantity each, in which a run has the colour of its method."""
    for chart in CHARTS:
        for each in chart.shown:
            found = [run for run in runs if _known(run, each.column) and _known(run, chart.along)]
            only_at_the_end = all(_count(run, each.column) < 2 < _count(run, "round") for run in found)
            if found and each.title and not only_at_the_end:
                plain = each._replace(dash="solid")
                lines = [_line(run, plain, run.colour, run.key, chart.along) for run in found]
                yield Drawn(
                    each.title, each.about, _along(chart, lines), chart.along, {each.column: each.label}
                )
        if chart is CHARTS[0]:
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
    names = {"round", "global_chance", *(quantity.column for quantity in shown)}
    found = {name: [_short(record[name]) for record in kept] for name in sorted(names)}
    means, stds = ([record[f"local_{name}"] for record in kept] for name in ("accuracy", "std"))
    for edge, side in (("below", -1), ("above", 1)):
        found[f"local_{edge}"] = [
            None if mean is None or std is None else _short(min(max(mean + side * std, 0.0), 1.0))
            for mean, std in zip(means, stds, strict=True)
        ]
    clock = [record["clock"] for record in kept]
    hours = {"hours": [_short(None if now is None else now / HOUR) for now in clock]}
    return found | hours if any(now is not None for now in clock) else found


def of_classes(found: ByClass, rounds: Sequence[float | None]) -> dict[str, list[float | None]]:
    """Columns of each class beside those of these rounds: the last that is recorded since the one before."""
    known = [round or 0.0 for round in rounds]
    at = [-1] * len(known)  # the place of what is recorded
    for place, round in enumerate(found.rounds):
        if (after := bisect_left(known, round)) < len(known):
            at[after] = place
    return {
        class_column(measure, place): [
            None if own < 0 else _short(found.numbers[own][measure][place]) for own in at
        ]
        for measure in drawn(found.numbers)
        for place in range(len(found.classes.names))
    }


def _along(chart: Chart, lines: Sequence[Line]) -> str:
    values: list[float | None] = [value for line in lines for value in line.y]
    for line in lines:
        for edge in line.band or ():
            values += edge
    rounds = chart.along == "round"
    title = "round" if rounds else "hours"
    x = axis.fit(title, (value for line in lines for value in line.x), whole=rounds, pad=0.01)
    return svg.chart(x, axis.fit(chart.unit, values, log=chart.log, bounds=chart.bounds), lines)


def _line(run: Shown, of: Quantity, colour: str, key: str, along: str) -> Line:
    band = None if of.band is None else (run.columns[of.band[0]], run.columns[of.band[1]])
    return Line(run.columns[along], run.columns[of.column], colour, key, of.dash, band, of.bridges)


def _known(run: Shown, column: str) -> bool:
    return _count(run, column) > 0


def _count(run: Shown, column: str) -> int:
    return sum(value is not None for value in run.columns.get(column, ()))


def _last(values: Sequence[float | None]) -> float | None:
    return next((value for value in reversed(values) if value is not None), None)


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
