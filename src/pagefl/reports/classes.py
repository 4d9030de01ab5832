"""Clients by class of device as a table: a row for each class."""

from collections.abc import Callable, Sequence
from html import escape

from pagefl.runtime import by_class
from pagefl.runtime.by_class import ByClass

from .words import count, decimal, percent, short

TITLE = "Clients by class of device"
ABOUT = (
    "Local accuracy and multiplier are the last ones recorded. A turn is one client in one recorded round; "
    "seconds, epochs, and the shares of late uploads and exceeded budgets are over all turns."
)
COLUMNS: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "Clients": ("clients", count),
    "Local accuracy": ("local_accuracy", decimal),
    "Turns": ("turns", count),
    "Seconds": ("seconds", short),
    "Epochs": ("epochs", short),
    "Late": ("late", percent),
    "Over budget": ("over", percent),
    "Multiplier": ("multiplier", short),
}


def figure(runs: Sequence[tuple[str, ByClass]]) -> str:
    """Runs by name. Columns of which nothing is known are left out."""
    rows = []
    for run, of in runs:
        found = by_class.summary(of.numbers, of.classes)
        for place, name in enumerate(of.classes.names):
            called = name if len(runs) == 1 else f"{run}: {name}"
            rows.append((called, {measure: values[place] for measure, values in found.items()}))
    columns = {
        head: (measure, text)
        for head, (measure, text) in COLUMNS.items()
        if any(row[measure] is not None for _, row in rows)
    }
    head = "".join(f'<th scope="col">{name}</th>' for name in ("Class", *columns))
    body = "".join(
        f'<tr><th scope="row">{escape(called)}</th>'
        + "".join(f"<td>{text(row[measure])}</td>" for measure, text in columns.values())
        + "</tr>"
        for called, row in rows
    )
    return f"""<figure class="wide"><h2>{TITLE}</h2><figcaption>{ABOUT}</figcaption>
<div class="scroll" tabindex="0" role="region" aria-label="{TITLE}">
<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></figure>
"""
