"""Colours: a method has the same one in every figure, table and report."""

from collections.abc import Sequence
from zlib import crc32

from pagefl.algorithms import ALGORITHMS
from pagefl.experiments.defaults import DEFAULT_ALGORITHM, NICKNAMES
from pagefl.game.players import PLAYERS

# Ten hues in three shades. All of them can be read on white and on black paper.
COLOURS = (
    *("#3b82f6", "#e8710a", "#14a06f", "#a35cf0", "#e0457b"),
    *("#0e9aa7", "#b08900", "#6d9a1f", "#6470e8", "#d9534f"),
    *("#2563b8", "#a4530f", "#0f7350", "#7b3fb8", "#a8325c"),
    *("#0d6f79", "#7d6200", "#4f7016", "#4850b0", "#9c3532"),
    *("#7fb0f9", "#f0a55e", "#57c59b", "#c79bf6", "#ee8db0"),
    *("#5bbfc9", "#d0b04a", "#9dc157", "#9aa2f2", "#ec918e"),
)
NEUTRAL = "#8a8f98"  # what is no method: a reference, a Pareto front, chance


def _known() -> list[str]:
    """Methods with a colour of their own: players on the default algorithm, then other algorithms."""
    with_players = [f"{DEFAULT_ALGORITHM}+{name}" for name in [*PLAYERS][1:]]
    named = {f"{m['algorithm']}+{m['players']}": name for name, m in NICKNAMES.items() if "personal" not in m}
    first = [DEFAULT_ALGORITHM, *(named.get(name, name) for name in reversed(with_players))]
    return [*first, *(name for name in ALGORITHMS if name != DEFAULT_ALGORITHM)]


KNOWN = _known()


def colours(methods: Sequence[str]) -> dict[str, str]:
    """A colour for each of these methods, such as "fedprox", "page" or "scaffold+page, lr = 0.1".

    A method has its own colour, unless another one in the list has taken it: then the next that is free.
    """
    found: dict[str, str] = {}
    for method in methods:
        if method not in found:
            first = _place(method)
            order = (COLOURS[(first + step) % len(COLOURS)] for step in range(len(COLOURS)))
            found[method] = next((one for one in order if one not in found.values()), COLOURS[first])
    return found


def _place(method: str) -> int:
    name = method.partition(",")[0].strip().lower().replace(" ", "")
    return KNOWN.index(name) if name in KNOWN else crc32(name.encode(errors="replace")) % len(COLOURS)
