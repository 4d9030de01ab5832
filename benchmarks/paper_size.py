"""The paper's CIFAR-100 federation, 100 clients × ResNet-18, for a round of one local epoch: memory and
seconds.

    PAGEFL_DATA=… python benchmarks/paper_size.py [ALGORITHM …] [--clients 100]

Memory is sampled over this process and its workers, shared pages counted once: what must stay in memory
(anonymous and shared), and beside it pages of the row file, which the kernel may drop. Seconds are also
scaled to the task's own epochs.
"""

import argparse
import multiprocessing
import os
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import pagefl
from pagefl.experiments.tasks import TASKS


def held() -> dict[str, float]:
    """GB by kind."""
    totals = {"Pss_Anon": 0, "Pss_Shmem": 0, "Pss_File": 0}
    for pid in [os.getpid(), *(child.pid for child in multiprocessing.active_children())]:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        for name, value in (line.split()[:2] for line in lines[1:]):
            if name[:-1] in totals:
                totals[name[:-1]] += int(value)
    return {
        "memory": (totals["Pss_Anon"] + totals["Pss_Shmem"]) * 1024 / 1e9,
        "file": totals["Pss_File"] * 1024 / 1e9,
    }


def measure(algorithm: str, clients: int) -> None:
    peak = {"memory": 0.0, "file": 0.0}
    enough = threading.Event()

    def watch() -> None:
        while not enough.wait(0.5):
            for name, value in held().items():
                peak[name] = max(peak[name], value)

    start = perf_counter()
    with TemporaryDirectory(dir=Path.cwd()) as folder:  # not in memory, as /tmp may be
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        task = {"name": "cifar100", "clients": clients}
        run = pagefl.run(
            task=task,
            algorithm=algorithm,
            rounds=1,
            epochs=1,
            clients_every=0,
            out=f"{folder}/run",
            say=print,
        )
        size = (Path(folder) / "run/checkpoint").stat().st_size / 1e9
        enough.set()
        watcher.join()
    seconds, epochs = run.rounds[-1]["seconds"], TASKS["cifar100"].run["epochs"]
    print(
        f"{algorithm}, {clients} clients: peak {peak['memory']:.1f} GB in memory, {peak['file']:.1f} GB "
        "of files mapped; "
        f"round of 1 epoch {seconds:.0f} s, of {epochs} about {seconds * epochs:.0f} s; with set-up and a "
        "checkpoint of "
        f"{size:.1f} GB {perf_counter() - start:.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("algorithms", nargs="*", default=["fedavg"])
    parser.add_argument("--clients", type=int, default=100)
    arguments = parser.parse_args()
    for algorithm in arguments.algorithms:
        measure(algorithm, arguments.clients)
