"""Worker processes that share the federation's rows: forked, so data and code are there without a copy."""

import ctypes
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

CAN_FORK = sys.platform.startswith("linux")  # elsewhere a forked torch is not safe
PutBack = Callable[[], None]
Say = Callable[[str], None]
MOST_DEATHS = 3  # of one piece of work


@contextmanager
def memory_errors_named() -> Iterator[None]:
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):  # torch's words
            raise
        raise UserError(
            "there is not enough memory; nothing already written is lost, and `pagefl resume` goes on, "
            "best with fewer `workers` in spec.toml or with more memory"
        ) from error


class SharedRows:
    """Makes zeros that forked workers see: in memory, and what is beyond half of it in a file that the kernel can put
    rows away to while nobody uses them. The file has no name, so nothing is left of it however the run ends."""

    def __init__(self, folder: Path | None) -> None:
        while folder and not folder.exists():  # a run's directory is only made when all else is right
            folder = folder.parent
        self.folder, self.room = folder, available_memory() // 2
        self.in_file = 0

    def check(self, size: int) -> None:
        """Refuse what fits neither into memory nor onto the disk."""
        place = self.folder or gettempdir()
        free = shutil.disk_usage(place).free
        if size > max(self.room, free):
            raise UserError(
                f"the clients' models need {readable(size)}: memory has room for {readable(self.room)} of them, and the disk "
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
                    os.posix_fallocate(file.fileno(), 0, size)  # a full disk says so now, not in the middle of a round
                memory = mmap.mmap(file.fileno(), size)
        return torch.frombuffer(memory, dtype=dtype).view(*shape)


def one_thread() -> None:
    """Every numeric path runs on one thread, so that bits do not depend on a machine's cores; processes are for speed."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def flushes_denormals() -> bool:
    """Whether numbers too small for a full mantissa count as zero in this thread. Torch can set this, but not tell it."""
    return bool(torch.tensor(1e-39) * 1 == 0)


def keep_memory() -> None:
    """Freed memory stays with the process: glibc would hand large blocks back to the kernel, and to get them again, one
    page fault after the other, took a quarter of an LSTM's step. Without glibc nothing happens."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD


class Workers:
    """`run(jobs)` does every job, somewhere, and answers in the order of the jobs. Where a worker dies, another does its job
    again, from what the job began with."""

    def __init__(self, count: int, work: Callable[[Any], object], keep: Callable[[Any], PutBack], say: Say) -> None:
        """`keep(job)`: keeps what a job reads and overwrites, and returns what puts it back."""
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
            with suppress(BrokenPipeError, ConnectionResetError):  # it is dead, as its answer will tell
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
        process = context.Process(target=_serve, args=(theirs, [*self.processes, ours], self.work, os.getpid()), daemon=True)
        process.start()
        theirs.close()
        self.processes[ours] = process
        return ours

    def _replace(self, pipe: Connection, deaths: int) -> Connection:
        process = self.processes.pop(pipe)
        pipe.close()
        process.join()  # from here on it writes nothing
        if deaths == MOST_DEATHS:
            raise UserError(
                f"{deaths} worker processes died of the same piece of work (out of memory?); nothing already written is lost, "
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
    for other in others:  # inherited ends would keep a dead parent's pipes open
        other.close()
    for number in (signal.SIGINT, signal.SIGTERM):  # a Ctrl-C reaches all; the parent ends its round and then the workers
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
            except Exception as error:  # a bug: say what and where, in the parent
                error.add_note("(in a worker process)")
                pipe.send((False, error))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        pass
    os._exit(0)  # without the parent's exit handlers
