"""What this machine has room for: asked before anything large is made."""

import os
from collections.abc import Iterator
from pathlib import Path

from .control_groups import groups
from .errors import UserError

SMALL = 2**26  # bytes that are never asked about
UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
FILES = {  # of a control group, by its version: limit, usage, and the line of cached files
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


def needs(size: int, what: str, instead: str, room: int | None = None) -> None:
    """Refuse `what` if it does not fit, and say what to do instead. `room`: if it is known."""
    if size <= SMALL:
        return
    room = available() if room is None else room
    if size > room:
        raise UserError(
            f"{what} need about {readable(size)} of memory, and {readable(room)} are free; {instead}"
        )


def readable(size: int) -> str:
    power = min(max(len(str(size)) - 1, 0) // 3, len(UNITS) - 1)
    return f"{size // 1000 ** max(power - 1, 0) / 1000 ** min(power, 1):.4g} {UNITS[power]}"


def available(root: Path = Path("/")) -> int:
    """In bytes: the machine's, or less where a control group allows less."""
    try:
        facts = dict(line.split(":") for line in (root / "proc/meminfo").read_text().splitlines())
        machine = int(facts["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):  # not Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return max(0, min([machine, *_left_in_groups(root)]))


def _left_in_groups(root: Path) -> Iterator[int]:
    for version, group in groups("memory", root):
        yield from _left(group, *FILES[version])


def _left(group: Path, limit: str, usage: str, cache: str) -> Iterator[int]:
    """Cached files count as used, and the kernel drops them when memory is asked for."""
    try:
        most, used = int((group / limit).read_text()), int((group / usage).read_text())
        facts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        yield most - used + int(facts.get(cache, 0))
    except (OSError, ValueError):  # no such group, or "max"
        return
