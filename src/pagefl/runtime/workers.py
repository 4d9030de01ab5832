"""Worker processes that share the federation's rows. They are forked, so data and code are not copied."""

import ctypes
import gc
import mmap
import multiprocessing
import os
import shutil
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import prod
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import Any, cast

import torch
from torch import Tensor

from pagefl.core.errors import UserError
from pagefl.core.memory import available as available_memory
from pagefl.core.memory import readable

CAN_FORK = sys.platform.startswith("linux")  # forking torch is not safe elsewhere
PutBack = Callable[[], None]
Say = Callable[[str], None]
MOST_DEATHS = 3  # of workers on one job


@contextmanager
def memory_errors_named() -> Iterator[None]:
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):  # torch's wording
            raise
        raise UserError(
            "there is not enough memory; nothing already written is lost, and `pagefl resume` goes on, "
            "best with fewer `workers` in spec.toml or with more memory"
        ) from error


class SharedRows:
    """Allocates zeros that forked workers share.

    Up to half of the memory is used. Beyond it, rows are in a file, which the kernel can page out while
    they are not used. The file has no name, so nothing of it remains however the run ends.
    """

    def __init__(self, folder: Path | None) -> None:
        while folder and not folder.exists():  # the run's directory is made later
            folder = folder.parent
        self.folder, self.room = folder, available_memory() // 2
        self.in_file = 0

    def check(self, size: int) -> None:
        """Raise if the size fits neither into memory nor onto the disk."""
        place = self.folder or gettempdir()
        free = shutil.disk_usage(place).free
        if size > max(self.room, free):
            raise UserError(
                f"the clients' models need {readable(size)}: memory has room for {readable(self.room)} of "
                "them, and the disk "
                f"of {place} for {readable(free)}; use fewer clients or a smaller model"
            )

    def __call__(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        size = prod(shape) * dtype.itemsize
        if not size:
            return torch.zeros(*shape, dtype=dtype)
        if size <= self.room:
            self.room -= size
            memory = mmap.mmap(-1, size)
        else:
            self.check(size)
            self.in_file += size
            with TemporaryFile(dir=self.folder) as file:
                file.truncate(size)
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)  # a full disk fails here, not in a round
                memory = mmap.mmap(file.fileno(), size)
        return torch.frombuffer(memory, dtype=dtype).view(*shape)


def one_thread() -> None:
    """Use one thread, so that results do not depend on the number of cores. Processes are for speed."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def flushes_denormals() -> bool:
    """Whether this thread treats denormal numbers as zero. Torch can set this but not report it."""
    return bool(torch.tensor(1e-39) * 1 == 0)


def keep_memory() -> None:
    """Keep freed memory in the process.

    glibc would return large blocks to the kernel. Getting them again, one page fault after the other, took a
    quarter of an LSTM's step. Without glibc this does nothing.
    """
    _return_from(1 << 30, (1 << 31) - 1)


@contextmanager
def kept_memory() -> Iterator[None]:
    """The same for a while, in a process that is not ours alone. All of it is then returned."""
    keep_memory()
    try:
        yield
    finally:
        _return_from(32 << 20, 64 << 20)  # what glibc itself arrives at in a process that uses large blocks
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def _return_from(block: int, top: int) -> None:
    """The sizes in bytes from which glibc returns a freed block, and free memory at the end of the heap."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-3, block)  # M_MMAP_THRESHOLD
        mallopt(-1, top)  # M_TRIM_THRESHOLD


class Workers:
    """Runs jobs in worker processes. `run(jobs)` returns the results in the order of the jobs.

    If a worker dies, another one repeats its job from the state in which the job began.
    """

    def __init__(
        self, count: int, work: Callable[[Any], object], keep: Callable[[Any], PutBack], say: Say
    ) -> None:
        """`keep(job)` keeps what a job reads and overwrites. It returns a function that restores it."""
        self.work, self.keep, self.say = work, keep, say
        self.processes: dict[Connection, BaseProcess] = {}
        for _ in range(count):
            self._start()

    def run(self, jobs: Sequence[Any]) -> list[Any]:
        answers: list[Any] = [None] * len(jobs)
        waiting, deaths = deque(range(len(jobs))), [0] * len(jobs)
        busy: dict[Connection, tuple[int, PutBack]] = {}

        def hand_out(pipe: Connection) -> None:
            if not waiting:
                return
            number = waiting.popleft()
            busy[pipe] = number, self.keep(jobs[number])
            with suppress(BrokenPipeError, ConnectionResetError):  # a dead worker is noticed below
                pipe.send(jobs[number])

        for pipe in list(self.processes):
            hand_out(pipe)
        while busy:
            for ready in wait(list(busy)):
                pipe = cast(Connection, ready)
                number, put_back = busy.pop(pipe)
                try:
                    good, answers[number] = pipe.recv()
                except (EOFError, OSError):
                    deaths[number] += 1
                    pipe = self._replace(pipe, deaths[number])
                    put_back()
                    waiting.appendleft(number)
                    good = True
                if not good:
                    raise answers[number]
                hand_out(pipe)
        return answers

    def _start(self) -> Connection:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_serve, args=(theirs, [*self.processes, ours], self.work, os.getpid()), daemon=True
        )
        process.start()
        theirs.close()
        self.processes[ours] = process
        return ours

    def _replace(self, pipe: Connection, deaths: int) -> Connection:
        process = self.processes.pop(pipe)
        pipe.close()
        process.join()  # it writes nothing from here on
        if deaths == MOST_DEATHS:
            raise UserError(
                f"{deaths} worker processes died of the same piece of work (out of memory?); nothing "
                "already written is lost, "
                "and `pagefl resume` goes on, best with fewer `workers` in spec.toml"
            )
        self.say("a worker process died; another one does its piece of work again")
        return self._start()

    def close(self) -> None:
        for pipe in self.processes:
            pipe.close()
        for process in self.processes.values():
            process.join(timeout=1)
            if process.is_alive():
                process.kill()
                process.join()


def _serve(pipe: Connection, others: list[Connection], work: Callable[[Any], object], parent: int) -> None:
    gc.freeze()  # what the parent leaves behind is its own to clean up: a cluster's memory, open files
    for other in others:  # inherited ends would keep the pipes of a dead parent open
        other.close()
    # A Ctrl-C reaches all processes. The parent finishes its round and then stops the workers. So do the
    # signals by which a cluster announces that a job will be stopped.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    one_thread()
    keep_memory()
    try:
        while os.getppid() == parent:
            if not pipe.poll(1.0):
                continue
            job = pipe.recv()
            try:
                with memory_errors_named():
                    answer = work(job)
                pipe.send((True, answer))
            except UserError as error:
                pipe.send((False, error))
            except Exception as error:  # a bug: raised in the parent
                error.add_note("(in a worker process)")
                pipe.send((False, error))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        pass
    os._exit(0)  # skip the parent's exit handlers
