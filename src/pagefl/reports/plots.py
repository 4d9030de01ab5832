"""Runs drawn with matplotlib, for notebooks and papers."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from matplotlib.axes import Axes

from .palette import COLOURS

if TYPE_CHECKING:
    import pandas as pd

LINES = {  # of "accuracy": colour, dashes and marker
    "global_accuracy": ("global", COLOURS[0], "-", ""),
    "local_accuracy": ("local", COLOURS[1], "-", ""),
    "personal_accuracy": ("personal", COLOURS[2], ":", "o"),
}


def draw(kind: str, history: "pd.DataFrame", axes: Axes | None, label: str) -> Axes:
    if axes is None:
        from matplotlib import pyplot as plt

        axes = plt.subplots(layout="constrained")[1]
    KINDS[kind](history, axes, label)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False)
    return axes


def _accuracy(history: "pd.DataFrame", axes: Axes, label: str) -> None:
    axes.set(xlabel="round", ylabel="accuracy")
    if label:
        (line,) = axes.plot(history["round"], history["global_accuracy"], label=label)
        axes.plot(history["round"], history["local_accuracy"], "--", color=line.get_color())
        return
    for column, (name, colour, dash, marker) in LINES.items():
        known = history[history[column].notna()]
        if len(known):
            axes.plot(known["round"], known[column], dash, color=colour, marker=marker, label=name)


def _plane(history: "pd.DataFrame", axes: Axes, label: str) -> None:
    known = history[history["global_accuracy"].notna() & history["local_accuracy"].notna()]
    colour = None if label else COLOURS[0]
    (line,) = axes.plot(known["global_accuracy"], known["local_accuracy"], alpha=0.6, color=colour)
    end = known.iloc[-1:]
    axes.plot(end["global_accuracy"], end["local_accuracy"], "o", color=line.get_color(), label=label or None)
    axes.set(xlabel="global accuracy", ylabel="local accuracy")


def _moves(history: "pd.DataFrame", axes: Axes, label: str) -> None:
    colour = None if label else COLOURS[3]
    axes.plot(
        history["round"], history["mean_lr"] * history["mean_epochs"], color=colour, label=label or None
    )
    axes.set(xlabel="round", ylabel="learning rate × epochs (mean)", yscale="log")


KINDS: dict[str, Callable[["pd.DataFrame", Axes, str], None]] = {
    "accuracy": _accuracy,
    "plane": _plane,
    "moves": _moves,
}
