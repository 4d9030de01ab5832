"""What several runs come to, in a sentence for each of the two accuracies."""

from collections.abc import Sequence

from pagefl.runtime import numbers

from .html import Reported
from .words import count

LEVEL = 0.01  # runs of one seed that are nearer than a point are called level
AXES = {
    "global_accuracy": "the shared model (global accuracy)",
    "local_accuracy": "the clients' own models (local accuracy)",
}


def sentences(runs: Sequence[Reported]) -> list[str]:
    """Who ends best on each axis, against the first run. Nothing if there are not two to compare."""
    ends = {run.name: numbers.of_rounds(run.rounds[-1:], run.name) for run in runs}
    last = {name: rounds[0] for name, rounds in ends.items() if rounds}
    known = {name: end for name, end in last.items() if all(end[axis] is not None for axis in AXES)}
    if len(known) < 2:
        return []
    said = []
    for axis, words in AXES.items():
        values = {name: end[axis] or 0.0 for name, end in known.items()}
        first, best = next(iter(values)), max(values.values())
        level = [name for name, value in values.items() if best - value < LEVEL]
        if first in level:
            others = [name for name in level if name != first]
            also = f"; level with it: {', '.join(others)}" if others else ""
            said.append(
                f"On {words}, nothing ends more than a point above {first} ({values[first]:.1%}){also}."
            )
        else:
            winners = " and ".join(
                f"{name} won {100 * (values[name] - values[first]):.0f} points ({values[name]:.1%})"
                for name in level
            )
            said.append(f"On {words}, {winners} over {first} ({values[first]:.1%}).")
    costs = ", ".join(f"{name} {count(end['gradients'])}" for name, end in known.items() if end["gradients"])
    if costs:
        said[-1] = f"{said[-1].removesuffix('.')}, for these gradient evaluations: {costs}."
    return said
