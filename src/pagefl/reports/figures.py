"""Figures as PNG and SVG files."""

from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import fill

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.figure import Figure

from pagefl.experiments import by_time, paper, sweep
from pagefl.experiments.scales import Block
from pagefl.experiments.statistics import SIDES, by_run
from pagefl.experiments.sweep import Found
from pagefl.runtime import numbers
from pagefl.runtime.numbers import Numbers

from .palette import COLOURS, NEUTRAL, colours

NO_MODEL = 0.2  # of the best global accuracy: below it, a shared model knows next to nothing
TITLE = 48  # characters, the width of a panel
MARKERS = "osD^vP*Xph<>d"  # more than colours: no two of a hundred methods look alike


def save(figure: Figure, path: Path) -> list[Path]:
    written = [path.with_suffix(suffix) for suffix in (".png", ".svg")]
    for each in written:
        # The same figure gives the same bytes: an SVG has no date, and its ids are not random.
        with rc_context({"svg.hashsalt": path.stem}):
            figure.savefig(each, dpi=150, metadata={"Date": None} if each.suffix == ".svg" else None)
    return written


def plane(blocks: Sequence[Block], found: Sequence[Found]) -> Figure:
    """Global against local accuracy: one point per method, with the standard deviation over seeds.

    A hollow point above or below it is the accuracy after the personal step. The line is the Pareto front.
    A method without a shared model to speak of, such as local training, is a horizontal line.
    """
    panels = [(block, _means(block, found)) for block in blocks]
    panels = [(block, means) for block, means in panels if means]
    figure, axes = _panels(len(panels))
    names = list(dict.fromkeys(name for _, means in reversed(panels) for name in means))
    together = set(names).intersection(*(means for _, means in panels))  # shared rows: one legend is enough
    handles, hues = {}, colours(names)
    for axis, (block, means) in zip(axes, panels, strict=True):
        best = max(point[0] for point in means.values())
        for name, (x, y, dx, dy, personal) in means.items():
            style = {"color": hues[name], "marker": MARKERS[names.index(name) % len(MARKERS)]}
            if x < NO_MODEL * best:
                label = f"{name} (no shared model)"
                handles[name] = axis.axhline(
                    y, color=style["color"], linewidth=1, linestyle="--", label=label
                )
                continue
            axis.plot([x, x], [y, personal], color=style["color"], linewidth=0.7, alpha=0.5)
            axis.plot(x, personal, fillstyle="none", markersize=6, linestyle="", **style)
            handles[name] = axis.errorbar(
                x,
                y,
                xerr=dx,
                yerr=dy,
                label=name,
                markersize=6,
                linestyle="",
                capsize=2,
                elinewidth=0.8,
                **style,
            )
        front = _front(np.array([point[:2] for point in means.values() if point[0] >= NO_MODEL * best]))
        axis.plot(front[:, 0], front[:, 1], color=NEUTRAL, linewidth=1, linestyle=":", zorder=0)
        axis.set(xlabel="global accuracy, %", title=_wrapped(block.title))
        label = "local accuracy, % (hollow: personal)"
        axis.set(ylabel=label if axis in axes[:: _columns(len(panels))] else "")
        if not together:
            axis.legend(frameon=False, fontsize=8)
    if together:
        shown = [handles[name] for name in names]
        labels = [str(handle.get_label()) for handle in shown]
        figure.legend(shown, labels, loc="outside right center", frameon=False, fontsize=8)
    return figure


def curves(blocks: Sequence[Block], found: Sequence[Found]) -> Figure:
    """Figure 2: accuracy by round, with the rewards of both sides on a second axis, for the first seed."""
    panels = []
    for block in blocks:
        for name, specs in block.rows.items():
            title = block.title if len(block.rows) == 1 else f"{block.title}: {name}"
            panels += [(title, numbers.of_rounds(one.rounds, one.name)) for one in sweep.of(specs[:1], found)]
    figure, axes = _panels(len(panels))
    for axis, (title, rounds) in zip(axes, panels, strict=True):
        x = _curve(rounds, "round")
        right = axis.twinx()
        for target, column, label, colour, dash in (
            (axis, "global_accuracy", "global accuracy", COLOURS[0], "-"),
            (axis, "local_accuracy", "local accuracy", COLOURS[1], "-"),
            (right, "reward_server", "server's reward", COLOURS[2], ":"),
            (right, "reward_clients", "clients' reward", COLOURS[3], ":"),
        ):
            y = _curve(rounds, column)
            judged = ~np.isnan(y) if column.endswith("accuracy") else slice(None)  # not in every round
            target.plot(
                x[judged],
                y[judged],
                dash,
                color=colour,
                linewidth=1.2,
                label=label,
                marker="." if len(x) == 1 else "",
            )
        both = (entry[column] for entry in rounds for column in ("reward_server", "reward_clients"))
        rewards = [value for value in both if value is not None]
        if rewards and max(rewards) > 10 * min(rewards):  # a shorter log axis has too few labels
            right.set_yscale("log")
        axis.set(xlabel="round", title=_wrapped(title))
        right.tick_params(labelsize=8)
    axes[0].set_ylabel("accuracy")
    right.set_ylabel("reward")
    handles = [*axis.get_lines(), *right.get_lines()]
    figure.legend(
        handles,
        [str(h.get_label()) for h in handles],
        loc="outside lower center",
        ncols=min(4, 2 * len(panels)),
        frameon=False,
        fontsize=9,
    )
    return figure


def _wrapped(title: str) -> str:
    return fill(title, TITLE)


def _curve(rounds: Sequence[Numbers], column: str) -> npt.NDArray[np.float64]:
    return np.array([entry[column] for entry in rounds], np.float64)  # None becomes NaN, which leaves a gap


def pairs(blocks: Sequence[Block], found: Sequence[Found]) -> Figure:
    """Figure 3: two points per row. Bars would have to start at zero, and the differences are small."""
    panels = [(block, _means(block, found)) for block in blocks]
    widest = max(len(means) for _, means in panels)
    figure = Figure(figsize=(max(6.0, 1.1 * widest + 1.5), 3.6 * len(blocks)), layout="constrained")
    axes = figure.subplots(len(blocks), squeeze=False)[:, 0]
    for axis, (block, means) in zip(axes, panels, strict=True):
        places = np.arange(len(means))
        for at, (label, mean, spread, colour) in enumerate(
            (("global", 0, 2, COLOURS[0]), ("local", 1, 3, COLOURS[1]))
        ):
            heights, errors = ([point[i] for point in means.values()] for i in (mean, spread))
            x, marker = places + 0.16 * at - 0.08, MARKERS[at]
            axis.errorbar(
                x, heights, yerr=errors, label=label, color=colour, marker=marker, linestyle="", capsize=3
            )
        axis.set_xticks(places, list(means), rotation=20, ha="right")
        axis.set(ylabel="accuracy, %", title=_wrapped(block.title))
        axis.grid(axis="y", linewidth=0.4)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper right", frameon=False, ncols=2)
    return figure


def budgets(blocks: Sequence[Block], found: Sequence[Found]) -> Figure:
    """Accuracy against epsilon, with the standard deviation over seeds. Dashed: without privacy."""
    figure, axes = _panels(len(blocks))
    for axis, block in zip(axes, blocks, strict=True):
        means = _means(block, found)
        spent = {label: block.rows[label][0].privacy.epsilon for label in means}
        labels = sorted((label for label in means if spent[label]), key=lambda label: spent[label])
        x = [spent[label] for label in labels]
        for at, side in enumerate(("global", "local")):
            heights, errors = ([means[label][i] for label in labels] for i in (at, at + 2))
            axis.errorbar(
                x, heights, yerr=errors, label=side, color=COLOURS[at], marker=MARKERS[at], capsize=3
            )
            for label in means.keys() - set(labels):
                axis.axhline(
                    means[label][at], color=COLOURS[at], linestyle="--", linewidth=1, label=f"{side}, {label}"
                )
        if x:
            axis.set_xscale("log", base=2)
            axis.set_xticks(x, [f"{value:g}" for value in x])
        axis.set(xlabel="epsilon", ylabel="accuracy, %", title=_wrapped(block.title))
        axis.grid(linewidth=0.4)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", frameon=False, ncols=4)
    return figure


def attacks(blocks: Sequence[Block], found: Sequence[Found]) -> Figure:
    """Maps of the worst attack's global accuracy: shares of hostile clients by spreads of the inputs.

    Only blocks of one seed that name their spread are in the maps: those without a table.
    """
    worst: dict[str, dict[tuple[float, float], float]] = {}
    for block in blocks:
        for label, specs in {} if block.shows else block.rows.items():
            for one in sweep.of(specs, found):
                own = worst.setdefault(label.partition(paper.UNDER)[0], {})
                place = (float(one.spec.task["beta"]), one.spec.attack.share)
                last = numbers.of_rounds(one.rounds, one.name)[-1]["global_accuracy"] or 0.0
                own[place] = min(last, own.get(place, 1.0))
    figure, axes = _panels(max(1, len(worst)))
    for axis, (defence, own) in zip(axes, worst.items(), strict=False):
        spreads, shares = (sorted({place[i] for place in own}) for i in (0, 1))
        table = np.array([[100 * own.get((b, s), np.nan) for s in shares] for b in spreads])
        image = axis.imshow(table, cmap="viridis", vmin=0, vmax=100, origin="lower", aspect="auto")
        for (i, j), value in np.ndenumerate(table):
            colour = "black" if value > 60 else "white"
            axis.text(j, i, f"{value:.0f}", ha="center", va="center", color=colour)
        axis.set_xticks(range(len(shares)), [f"{share:.0%}" for share in shares])
        axis.set_yticks(range(len(spreads)), [f"{spread:g}" for spread in spreads])
        axis.set(title=defence, xlabel="hostile clients")
        axis.set(ylabel="spread of inputs (beta)" if axis is axes[0] else "")
    if worst:
        figure.colorbar(image, ax=axes, label="global accuracy, worst attack, %")
    return figure


def time(blocks: Sequence[Block], found: Sequence[Found]) -> Figure:
    """Accuracy by simulated hours, the mean over seeds: the shared model's above, the clients' below.

    Each curve ends where the first of its runs does. Dashed: what the unlimited runs end at.
    """
    figure = Figure(figsize=(1.6 + 3.6 * len(blocks), 7.2), layout="constrained")
    axes = figure.subplots(2, len(blocks), squeeze=False)
    names = dict.fromkeys(name for block in blocks for name in block.rows)
    hues = colours([*names])
    for column, block in enumerate(blocks):
        last = by_time.time_of(block) / by_time.HOUR
        for axis, side in zip(axes[:, column], SIDES, strict=True):
            for name, specs in block.rows.items():
                runs = (numbers.of_rounds(one.rounds, one.name) for one in sweep.of(specs, found))
                curves = [
                    curve for curve in (by_time.curve(rounds, side) for rounds in runs) if len(curve[0])
                ]
                if not curves:
                    continue
                if name == paper.UNLIMITED:
                    ends = np.mean([values[-1] for _, values in curves])
                    axis.axhline(100 * ends, color=NEUTRAL, linewidth=1, linestyle="--")
                until = min([last, *(hours[-1] for hours, _ in curves)])
                grid = np.linspace(0, until, 200)
                mean = np.mean([by_time.at(*curve, grid) for curve in curves], axis=0)
                width = 2.4 if name == paper.BUDGETED else 1.2
                axis.plot(grid, 100 * mean, color=hues[name], linewidth=width, label=name)
            axis.grid(linewidth=0.4)
            axis.set(xlim=(0, last or None), ylabel=f"{side} accuracy, %" if not column else "")
        axes[0, column].set(title=_wrapped(block.title))
        axes[1, column].set(xlabel="simulated hours")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", frameon=False, ncols=5, fontsize=9)
    return figure


FIGURES: dict[paper.Figure, Callable[[Sequence[Block], Sequence[Found]], Figure]] = {
    "plane": plane,
    "curves": curves,
    "pairs": pairs,
    "budgets": budgets,
    "attacks": attacks,
    "time": time,
}


def _means(block: Block, found: Sequence[Found]) -> dict[str, list[float]]:
    """Global and local means, their standard deviations over seeds, and the personal mean, in per cent."""
    points = {}
    for name, specs in block.rows.items():
        if runs := [(one.spec, one.rounds) for one in sweep.of(specs, found)]:
            found_by_run = 100 * by_run(runs)
            frame = found_by_run[["global_last", "local_last"]]
            numbers_of = (*frame.mean(), *frame.std().fillna(0.0), found_by_run["personal_accuracy"].mean())
            points[name] = [float(value) for value in numbers_of]
    return points


def _front(points: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The Pareto front, from left to right."""
    beaten = [(np.all(points >= point, axis=1) & np.any(points > point, axis=1)).any() for point in points]
    best = points[~np.array(beaten)]
    return np.asarray(best[np.argsort(best[:, 0])])


def _columns(count: int) -> int:
    """Number of columns for these panels. More than four panels take two rows."""
    return count if count <= 4 else -(-count // 2)


def _panels(count: int) -> tuple[Figure, list]:  # type: ignore[type-arg]  # of matplotlib's axes
    columns = _columns(count)
    rows = -(-count // columns)
    figure = Figure(figsize=(1.6 + 3.6 * columns, 3.6 * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for empty in axes[count:]:
        empty.set_axis_off()
    return figure, axes[:count]
