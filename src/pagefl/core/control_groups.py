"""Control groups of this process: limits of memory and cores, as containers and Slurm set them."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Group(NamedTuple):
    version: int  # 1 or 2: files have other names
    path: Path


def groups(controller: str, root: Path = Path("/")) -> Iterator[Group]:
    """This process's group and all groups around it: every one of them is a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        version, mount = (
            (1, root / "sys/fs/cgroup" / controller) if controllers else (2, root / "sys/fs/cgroup")
        )
        group = mount / path.lstrip("/")
        yield from (Group(version, place) for place in [group, *group.parents] if place.is_relative_to(mount))
