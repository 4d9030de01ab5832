"""Peak memory of this process and its children."""

import multiprocessing
import os
import threading
from pathlib import Path


class PeakMemory:
    """Samples the memory from its creation to `stop()`. Shared pages count once."""

    def __init__(self) -> None:
        self.mb = 0.0
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._enough.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
            self.mb = max(
                self.mb, sum(_field(f"/proc/{pid}/smaps_rollup", "Pss") for pid in pids) * 1024 / 1e6
            )
            if self._enough.wait(0.01):
                return


def _field(path: str, name: str) -> int:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:  # the process has ended, or this is not Linux
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
