"""Clients by class of device: what each class did in a round, from the records of all clients."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pagefl.core.arrays import Flags, Floats, Integers
from pagefl.game.account import ROUNDING

from . import numbers

MEANS = ("seconds", "epochs", "late", "over")  # over a class's turns
MEDIANS = ("multiplier", "used")
LOW, HIGH = ".low", ".high"  # quartiles beside a median
LAST = ("local_accuracy", "multiplier")  # of which the last known value says how a run stands
ENDLESS = 1e300  # in place of infinity, with which nothing can be interpolated
ClassNumbers = dict[str, list[float | None]]  # by measure: a number for each class


class Classes(NamedTuple):
    names: tuple[str, ...]  # the fastest first
    of: Integers  # each client's, as a place in `names`

    @property
    def facts(self) -> dict[str, Any]:
        return {"names": [*self.names], "of": self.of.tolist()}

    @property
    def sizes(self) -> list[int]:
        found: list[int] = np.bincount(self.of, minlength=len(self.names)).tolist()
        return found


class ByClass(NamedTuple):
    classes: Classes
    rounds: list[int]  # that are recorded
    numbers: list[ClassNumbers]  # of each of them


def classes_of(facts: Mapping[str, Any] | None) -> Classes | None:
    """From the facts of a checkpoint. None without devices, and in runs of before 0.2.0."""
    found = (facts or {}).get("classes")
    if not found:
        return None
    classes = Classes(tuple(found["names"]), np.array(found["of"], np.int64))
    return classes if len(classes.of) and classes.of.max() < len(classes.names) else None


def by_class(client_rounds: Sequence[Mapping[str, Any]], classes: Classes | None) -> ByClass | None:
    if classes is None or not client_rounds:
        return None
    rounds = [entry["round"] for entry in client_rounds]
    return ByClass(classes, rounds, [of_round(entry, classes) for entry in client_rounds])


def of_round(entry: Mapping[str, Any], classes: Classes) -> ClassNumbers:
    """`turns`: clients that trained and had something to upload, in time or late. Means are over them.

    The accuracy is that of all clients, as in the records of rounds: what is known of them.
    """
    names = ("local_accuracy", "hostile", "trained", *MEANS, *MEDIANS)
    each = {name: _column(entry, name, len(classes.of)) for name in names}
    turns = ~np.isnan(each["seconds"]) & ((each["trained"] == 1) | (each["late"] == 1))
    # a budget of which nothing is left is exceeded without end, which JSON cannot say
    each["used"][turns & ~np.isnan(each["multiplier"]) & np.isnan(each["used"])] = ENDLESS
    each["over"] = np.where(np.isnan(each["used"]), np.nan, each["used"] > 1 + ROUNDING)
    found: ClassNumbers = {"turns": [], "local_accuracy": []}
    for place in range(len(classes.names)):
        members = classes.of == place
        _put(found, "turns", float((members & turns).sum()))
        _put(found, "local_accuracy", _mean(each["local_accuracy"], members & (each["hostile"] != 1)))
        for name in MEANS:
            _put(found, name, _mean(each[name], members & turns))
        for name in MEDIANS:
            low, middle, high = _quartiles(each[name], members & turns)
            _put(found, name + LOW, low)
            _put(found, name, middle)
            _put(found, name + HIGH, high)
    return found


def drawn(rounds: Sequence[ClassNumbers]) -> list[str]:
    """Measures that are worth a chart, with their quartiles: not unknown or zero throughout."""
    of = {name: name.removesuffix(LOW).removesuffix(HIGH) for name in rounds[0]}
    return [name for name in of if any(value for one in rounds for value in one[of[name]])]


def summary(rounds: Sequence[ClassNumbers], classes: Classes) -> ClassNumbers:
    """Means over all turns of these rounds, and what is known last."""
    places = range(len(classes.names))
    turns = np.array([one["turns"] for one in rounds], np.float64)
    found: ClassNumbers = {"clients": [*classes.sizes], "turns": turns.sum(0).tolist()}
    for name in MEANS:
        values = np.array([one[name] for one in rounds], np.float64)
        total = np.where(np.isnan(values), 0, turns).sum(0)
        mean = np.divide(
            np.nansum(values * turns, 0), total, out=np.full(len(total), np.nan), where=total > 0
        )
        found[name] = [None if np.isnan(value) else float(value) for value in mean]
    for name in LAST:
        found[name] = [
            next((value for one in reversed(rounds) if (value := one[name][place]) is not None), None)
            for place in places
        ]
    return found


def _column(entry: Mapping[str, Any], name: str, clients: int) -> Floats:
    """Of each client; NaN where nothing plausible is known."""
    values = entry.get(name, ())
    if len(values) != clients:
        return np.full(clients, np.nan)
    found = np.array(values, np.float64)
    low, high = numbers.RANGES.get(name, (-numbers.LARGEST, numbers.LARGEST))
    found[(found < low) | (found > high)] = np.nan
    return found


def _mean(values: Floats, of: Flags) -> float:
    known = values[of & ~np.isnan(values)]
    return float(known.mean()) if len(known) else np.nan


def _quartiles(values: Floats, of: Flags) -> Floats:
    known = values[of & ~np.isnan(values)]
    if not len(known):
        return np.full(3, np.nan)
    return np.asarray(np.quantile(known, [0.25, 0.5, 0.75]))


def _put(found: ClassNumbers, name: str, value: float) -> None:
    found.setdefault(name, []).append(float(value) if abs(value) <= numbers.LARGEST else None)
