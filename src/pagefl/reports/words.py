"""Numbers as people read them."""

from collections.abc import Sequence

from pagefl.runtime.numbers import Numbers


def best(rounds: Sequence[Numbers], metric: str) -> str:
    """The highest value and the first round that reached it."""
    known = [(value, record["round"]) for record in rounds if (value := record[metric]) is not None]
    value, round = max(known, key=lambda found: found[0], default=(None, None))
    return "–" if value is None else f"{decimal(value)} in round {round}"


def decimal(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.4f}" if abs(value) < 1e6 else f"{value:.4g}"


def short(value: float | None) -> str:
    """Three digits."""
    return "–" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def count(value: float | None) -> str:
    """A large number, such as 1.2 million."""
    if value is None:
        return "–"
    for size, name in ((1e9, " billion"), (1e6, " million"), (1e3, ",000")):
        if value >= 10 * size or (value >= size and size > 1e3):
            return f"{value / size:.3g}{name}" if size > 1e3 else f"{value / size:.0f}{name}"
    return f"{value:.0f}"


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02} min"
