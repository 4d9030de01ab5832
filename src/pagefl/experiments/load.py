"""How much of the machine other processes took during a measurement: on a busy machine a ratio says nothing."""

import os
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

QUIET = 0.05  # the largest share of the machine that others may take
STAT = Path("/proc/stat")


class Reading(NamedTuple):
    seconds: float
    busy: float | None  # CPU seconds of all processes; None where the system does not tell
    own: float  # CPU seconds of this process, and of its children that have ended


class Load(NamedTuple):
    quiet: bool | None
    others: float | None  # their share of the machine's CPU time
    seconds: float
    cpu_seconds: float
    average: float  # the system's load average of the last minute
    cores: int


class Watch:
    """From its making to `stop()`. Worker processes of the measured code must have ended by then."""

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
        busy = (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")  # with what a hypervisor stole
    except (OSError, ValueError):  # not Linux
        busy = None
    return Reading(perf_counter(), busy, sum(os.times()[:4]))


def _others(start: Reading, end: Reading) -> float | None:
    if start.busy is None or end.busy is None:
        return None
    busy, own = end.busy - start.busy, end.own - start.own
    if busy < own / 2:  # a sandbox that shows no true figures
        return None
    return max(0.0, busy - own) / ((end.seconds - start.seconds) * (os.cpu_count() or 1))


def worst(loads: Iterable[Load]) -> Load:
    """The least believable of several measurements."""
    return max(loads, key=lambda load: (load.quiet is not True, load.others or 0.0))


def sentence(load: Load) -> str:
    if load.others is None:
        return f"quiet: unknown (this system does not tell what other processes do; load average {load.average:.1f})"
    taken = f"other processes took {load.others:.0%} of the machine; load average {load.average:.1f} on {load.cores} cores"
    return f"quiet: yes ({taken})" if load.quiet else f"quiet: no ({taken}): do not believe these figures"
