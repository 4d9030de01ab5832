"""An axis of a chart: its range, its ticks, and where a value lies on it."""

from collections.abc import Iterable
from math import ceil, floor, inf, log10
from typing import NamedTuple

LONG = 1000  # length of an axis, in the units of paths
DECADES = 2.5  # from which an axis shows powers of ten only


class Axis(NamedTuple):
    title: str
    low: float
    high: float
    log: bool
    ticks: list[float]

    def at(self, value: float | None) -> float | None:
        """The place of a value, from 0 to LONG; None if it has none."""
        if value is None or (self.log and value <= 0):
            return None
        low, high, here = (log10(v) if self.log else v for v in (self.low, self.high, value))
        return round(LONG * (here - low) / (high - low), 1)


def fit(
    title: str,
    values: Iterable[float | None],
    *,
    log: bool = False,
    bounds: tuple[float, float] = (-inf, inf),
    whole: bool = False,
    pad: float = 0.04,
) -> Axis:
    """An axis that shows all values. `bounds`: it goes no further. `whole`: ticks at whole numbers."""
    known = [value for value in values if value is not None and (not log or value > 0)]
    low, high = (min(known), max(known)) if known else (1.0, 2.0) if log else (0.0, 1.0)
    if log:
        wider = max((high / low) ** pad, 1.05)
        low, high = low / wider, high * wider
        return Axis(title, low, high, True, _powers(low, high))
    if high - low < 1e-9 * max(abs(low), abs(high), 1e-9):
        margin = 0.5 if whole else 0.05 * abs(high) or 0.5
    else:
        margin = pad * (high - low)
    low, high = max(low - margin, bounds[0]), min(high + margin, bounds[1])
    if low >= high:  # all values lie on a bound
        low, high = high - 0.05, low + 0.05
    return Axis(title, low, high, False, _steps(low, high, whole))


def _steps(low: float, high: float, whole: bool, count: int = 5) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / count
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    step = max(1.0, step) if whole else step
    return [float(f"{n * step:.12g}") for n in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def _powers(low: float, high: float) -> list[float]:
    decades = log10(high) - log10(low)
    apart = max(1, round(decades / 5))
    first, last = floor(log10(low)), ceil(log10(high))
    if decades < 0.5:
        return [tick for tick in _steps(low, high, False) if tick > 0]
    digits = (1, 2, 5) if decades < DECADES else (1,)
    found = [d * 10.0**n for n in range(first, last + 1) if n % apart == 0 for d in digits]
    return [float(f"{tick:.6g}") for tick in found if low <= tick <= high]


def label(tick: float) -> str:
    if tick and not 1e-4 <= abs(tick) < 1e5:
        power = floor(log10(abs(tick)) + 1e-9)
        digits = tick / 10.0**power
        small = str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return f"10{small}" if abs(digits - 1) < 1e-9 else f"{digits:g}·10{small}"
    return f"{tick:g}"
