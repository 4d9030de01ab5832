"""Wall time and CPU time, with the CPU time of worker processes that are still running."""

import ctypes
import multiprocessing
from collections.abc import Callable
from time import clock_gettime, perf_counter, process_time

import numpy as np

from pagefl.core.arrays import Floats


def now() -> Floats:
    """Seconds of wall time, and of CPU time that this process and its running children have used."""
    children = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
    return np.array([perf_counter(), process_time() + sum(map(_cpu_seconds, children))])


def fastest(call: Callable[[], object], clock: Callable[[], float]) -> float:
    """Seconds of the fastest of ten calls."""
    return min(seconds(call, clock) for _ in range(10))


def seconds(call: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    call()
    return clock() - start


def _cpu_seconds(pid: int) -> float:
    """To the nanosecond. /proc only counts hundredths of a second, and the shortest rounds take two."""
    clock = ctypes.c_int()
    ended = ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock))
    return 0.0 if ended else clock_gettime(clock.value)
