"""Which process writes a run directory. The kernel knows who holds its lock; no file has to be believed."""

import fcntl
import os
import signal
import stat
import struct
from pathlib import Path

from pagefl.core.errors import UserError

from .own_files import LOCK

LAYOUT = "hhqqi"  # of Linux's struct flock: type, whence, start, length, process id


def holder(directory: Path) -> int | None:
    """The process id of the run in this directory; None if no run is going on.

    Zero or less: a process of another machine or container.
    """
    try:
        file = os.open(directory / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):  # someone else's directory may hold a pipe
            return None
        wanted = struct.pack(LAYOUT, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_, process = struct.unpack(LAYOUT, fcntl.fcntl(file, fcntl.F_GETLK, wanted))
        return None if kind == fcntl.F_UNLCK else int(process)
    finally:
        os.close(file)


def stop(directory: Path) -> None:
    """Ask the run in this directory to stop after its round."""
    process = holder(directory)
    if process is None:
        raise UserError(f"{directory}: no run is going on here, so there is nothing to stop")
    if process <= 0:
        raise UserError(f"{directory}: its run is on another machine or in another container; stop it there")
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return  # it has ended meanwhile
    try:
        # Ids are used again. With a handle, and the lock still held, the signal reaches this run or nobody.
        if holder(directory) == process:
            signal.pidfd_send_signal(handle, signal.SIGTERM)
    except ProcessLookupError:
        return
    except PermissionError:
        raise UserError(f"{directory}: its run belongs to another user, who can stop it") from None
    finally:
        os.close(handle)
