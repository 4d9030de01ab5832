"""Runs as processes of this machine, side by side."""

import multiprocessing
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import ModuleType

from pagefl.core import cores

from .one_run import Ending, Task, attempt


class Processes:
    def __init__(self, jobs: int) -> None:
        """`jobs`: processes at once, which share the cores; 0 for one per core."""
        available = cores.available()
        self.jobs = jobs or available
        self.workers = max(1, available // self.jobs)
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([attempt.__module__])
        self.tasks: dict[Connection, tuple[str, BaseProcess]] = {}

    @property
    def running(self) -> int:
        return len(self.tasks)

    @property
    def room(self) -> int:
        return self.jobs - self.running

    def start(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            ours, theirs = self.context.Pipe(duplex=False)
            process = self.context.Process(
                target=_work, args=(theirs, task.spec_text, task.path, self.workers)
            )
            with _no_main_module():
                process.start()
            theirs.close()
            self.tasks[ours] = (task.name, process)

    def ended(self, seconds: float) -> list[tuple[str, Ending]]:
        found = []
        for pipe in wait(list(self.tasks), timeout=seconds):
            assert isinstance(pipe, Connection)
            name, process = self.tasks.pop(pipe)
            found.append((name, _ending(pipe, process)))
        return found

    def interrupt(self) -> None:
        """The Ctrl-C has reached the runs too."""

    def close(self) -> None:
        for _, process in self.tasks.values():
            process.terminate()
        for _, process in self.tasks.values():  # each finishes its round first
            process.join()


@contextmanager
def _no_main_module() -> Iterator[None]:
    """Hide the caller's script. Otherwise multiprocessing would execute it again for every run."""
    kept = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = kept


def _work(pipe: Connection, spec_text: str, path: str, workers: int) -> None:
    pipe.send(attempt(spec_text, path, workers))


def _ending(pipe: Connection, process: BaseProcess) -> Ending:
    try:
        ending: Ending = pipe.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        ending = Ending(problem=f"its process died of {cause}")
    process.join()
    return ending
