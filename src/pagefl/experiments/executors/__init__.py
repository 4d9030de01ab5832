"""Where the runs of a sweep are executed: processes of this machine, Ray tasks or Slurm jobs.

One task is one run. Whatever stops a task, the next one goes on from the run's checkpoint.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from pagefl.core.errors import UserError, shown

from .one_run import Ending, Task
from .processes import Processes
from .ray_tasks import RayTasks
from .slurm_jobs import SlurmJobs, checked

NEEDS = {"local": None, "ray": "ray", "slurm": "submitit"}  # the package of each executor
EXTRA = "cluster"


class Executor(Protocol):
    @property
    def running(self) -> int:
        """How many tasks have been started and have not ended."""

    @property
    def room(self) -> int:
        """How many more tasks may be started now."""

    def start(self, tasks: Sequence[Task]) -> None: ...

    def ended(self, seconds: float) -> list[tuple[str, Ending]]:
        """The runs whose tasks have ended. Waits for the first one, at most this long."""

    def interrupt(self) -> None:
        """After a Ctrl-C: let every task end after its round."""

    def close(self) -> None:
        """Stop what still runs. What it has written is kept."""


@dataclass(frozen=True)
class Place:
    """The executor that a user has chosen, and its options."""

    executor: str = "local"
    address: str | None = None  # of a Ray cluster
    slurm: Mapping[str, Any] = field(default_factory=dict)  # options of sbatch

    def __post_init__(self) -> None:
        if self.executor not in NEEDS:
            raise UserError(f"executor = {shown(self.executor)}: expected {', '.join(NEEDS)}")
        if self.address is not None and self.executor != "ray":
            raise UserError(f"address = {shown(self.address)}: only the executor ray has an address")
        if self.slurm and self.executor != "slurm":
            raise UserError(f"slurm: {shown(dict(self.slurm))} are options of the executor slurm")
        checked(self.slurm)
        package = NEEDS[self.executor]
        if package and find_spec(package) is None:
            raise UserError(
                f"the executor {self.executor} needs {package}, which is not installed; "
                f'`pip install "pagefl[{EXTRA}]"` brings it'
            )


@contextmanager
def opened(place: Place, jobs: int, folder: Path) -> Iterator[Executor]:
    """`jobs`: tasks at once; 0 for one per core, and on a cluster for as many as it has room for."""
    executor: Executor
    if place.executor == "ray":
        executor = RayTasks(jobs, place.address)
    elif place.executor == "slurm":
        executor = SlurmJobs(jobs, place.slurm, folder)
    else:
        executor = Processes(jobs)
    try:
        yield executor
    finally:
        executor.close()
