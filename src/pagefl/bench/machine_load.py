"""Measures the load by other processes. A benchmark on a busy machine is not reliable."""

import os
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

QUIET = 0.05  # largest share of the machine that other processes may use
TICKS = 0.05  # CPU seconds by which the system's figures may lag behind
STAT = Path("/proc/stat")


class Reading(NamedTuple):
    seconds: float
    busy: float | None  # CPU seconds of all processes; None if unknown
    own: float  # CPU seconds of this process and its finished children


class Load(NamedTuple):
    quiet: bool | None
    others: float | None  # share of CPU time that other processes used
    seconds: float
    cpu_seconds: float
    average: float  # load average of the last minute
    cores: int


class Watch:
    """Measures from its creation to `stop()`. Workers of the measured code must have ended by then."""

    def __init__(self) -> None:
        self._start = read()

    def stop(self) -> Load:
        end = read()
        seconds, own = end.seconds - self._start.seconds, end.own - self._start.own
        others = _others(self._start, end)
        quiet = None if others is None else others < QUIET
        return Load(quiet, others, seconds, own, os.getloadavg()[0], os.cpu_count() or 1)


def read() -> Reading:
    try:
        user, nice, system, _idle, _wait, *interrupts = map(int, STAT.read_text().split(maxsplit=9)[1:9])
        busy = (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")  # includes stolen time
    except (OSError, ValueError):  # not Linux
        busy = None
    return Reading(perf_counter(), busy, sum(os.times()[:4]))


def _others(start: Reading, end: Reading) -> float | None:
    if start.busy is None or end.busy is None:
        return None
    busy, own = end.busy - start.busy, end.own - start.own
    if busy + TICKS < own / 2:  # a sandbox with wrong figures
        return None
    return max(0.0, busy - own) / ((end.seconds - start.seconds) * (os.cpu_count() or 1))


def worst(loads: Iterable[Load]) -> Load:
    """The least reliable of several measurements."""
    return max(loads, key=lambda load: (load.quiet is not True, load.others or 0.0))


def caption(result: dict[str, Any]) -> str:
    """How reliable a benchmark's result is, in a sentence."""
    load = Load(**result["load"])
    if load.others is None:
        return (
            "quiet: unknown (this system does not tell what other processes do; load average "
            f"{load.average:.1f})"
        )
    taken = (
        f"other processes took {load.others:.0%} of the machine; load average {load.average:.1f} on "
        f"{load.cores} cores"
    )
    return f"quiet: yes ({taken})" if load.quiet else f"quiet: no ({taken}): do not believe these figures"
