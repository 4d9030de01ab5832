"""How many cores this process may use: those of its allocation, never those of the whole machine."""

import os
from collections.abc import Iterator
from pathlib import Path

from .control_groups import groups

SLURM = ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE")  # the first one that is set counts


def available(root: Path = Path("/")) -> int:
    return max(1, min([len(os.sched_getaffinity(0)), *_of_groups(root), *_of_slurm()]))


def _of_groups(root: Path) -> Iterator[int]:
    for version, group in groups("cpu", root):
        try:
            if version == 2:
                quota, period = (group / "cpu.max").read_text().split()
            else:
                quota, period = ((group / f"cpu.cfs_{what}_us").read_text() for what in ("quota", "period"))
            if int(quota) > 0:  # -1 in version 1: no limit
                yield int(quota) // int(period)
        except (OSError, ValueError, ZeroDivisionError):  # no such group, or "max"
            continue


def _of_slurm() -> Iterator[int]:
    """Not every site binds a task to its cores."""
    for name in SLURM:
        if (given := os.environ.get(name, "")).isdecimal():
            yield int(given)
            return
