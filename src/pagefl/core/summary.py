"""How an object shows itself: one line in a terminal, a short list in a notebook."""

from collections.abc import Sequence
from html import escape

from torch import Tensor


def line(kind: object, title: str, facts: Sequence[str]) -> str:
    parts = [title] * bool(title) + [", ".join(facts)] * bool(facts)
    return f"{type(kind).__name__}({': '.join(parts)})"


def html(kind: object, title: str, facts: Sequence[str]) -> str:
    """Names are the user's own text, so everything is escaped."""
    items = "".join(f"<li>{escape(fact)}</li>" for fact in facts)
    return f"<b>{escape(type(kind).__name__)}</b> {escape(title)}<ul>{items}</ul>"


def examples(x: Tensor) -> str:
    """What one of these examples is: `float32 [3, 32, 32]`."""
    return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape[1:])}"
