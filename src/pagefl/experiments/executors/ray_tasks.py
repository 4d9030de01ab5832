"""Runs as tasks of a Ray cluster. Results come back as files, in a folder that all nodes share."""

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pagefl.core.errors import UserError, shortened
from pagefl.runtime.ray_connection import connect

from .one_run import Ending, Task, attempt_on_node, versions

RETRIES = 10  # of a task whose node or process is lost: each goes on from the checkpoint
STORE = 100 * 2**20  # bytes: nothing but the endings of tasks is ever in it


class RayTasks:
    def __init__(self, jobs: int, address: str | None) -> None:
        """`jobs`: tasks at once; 0 for as many as the cluster has room for.

        `address`: of a running cluster; "auto" for the one of this machine; None for a Ray of our own. A
        program that is already connected keeps its connection.
        """
        self.ray, self.ours = connect(address or "", STORE)
        self.jobs = jobs
        self.tasks: dict[Any, Task] = {}
        self.interrupted = False
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        self.largest = int(max((node.get("CPU", 0) for node in nodes), default=0))
        if not self.largest:
            self.close()
            raise UserError(f"address = {address}: no node of this Ray cluster has a CPU to offer")

    @property
    def running(self) -> int:
        return len(self.tasks)

    @property
    def room(self) -> int:
        return self.jobs - self.running if self.jobs else 10**6

    def start(self, tasks: Sequence[Task]) -> None:
        remote, data = self.ray.remote(_work), os.environ.get("PAGEFL_DATA")
        for task in tasks:
            workers = min(task.workers or 1, self.largest)
            options = remote.options(
                num_cpus=workers, num_gpus=int(task.gpu), max_retries=RETRIES, name=task.name
            )
            started = options.remote(task.spec_text, task.path, workers, versions(), os.getcwd(), data)
            self.tasks[started] = task

    def ended(self, seconds: float) -> list[tuple[str, Ending]]:
        first, _ = self.ray.wait(list(self.tasks), num_returns=1, timeout=seconds)
        if not first:
            return []
        ready, _ = self.ray.wait(list(self.tasks), num_returns=self.running, timeout=0)
        found = []
        for each in ready:
            task, ending = self.tasks.pop(each), self._ending(each)
            if ending.stopped and not self.interrupted:  # its node is being drained
                self.start([task])
            else:
                found.append((task.name, ending))
        return found

    def _ending(self, task: Any) -> Ending:
        try:
            ending: Ending = self.ray.get(task)
            return ending
        except self.ray.exceptions.TaskCancelledError:
            return Ending(stopped=True)
        except self.ray.exceptions.RayError as error:
            last = next(line for line in reversed(str(error).splitlines()) if line.strip())
            return Ending(problem=f"its Ray task was lost: {shortened(last.strip(), 300)}")

    def interrupt(self) -> None:
        self.interrupted = True
        for task in self.tasks:
            self.ray.cancel(task, force=False)  # a run hears it as a Ctrl-C

    def close(self) -> None:
        for task in self.tasks:
            self.ray.cancel(task, force=self.interrupted)
        if self.tasks:  # each finishes its round first
            self.ray.wait(list(self.tasks), num_returns=self.running)
        if self.ours:
            self.ray.shutdown()


def _work(
    spec_text: str, path: str, workers: int, wanted: dict[str, str], folder: str, data: str | None
) -> Ending:
    """`folder`, `data`: where the sweep was started, and its data: for paths in the spec."""
    with suppress(OSError):  # a name that is looked up there is reported where it is needed
        os.chdir(folder)
    if data is not None:
        os.environ["PAGEFL_DATA"] = data
    return attempt_on_node(spec_text, path, workers, wanted)
