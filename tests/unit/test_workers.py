"""A worker that dies is replaced, its piece of work is done again, and the bits are those of a run that was
left alone.
"""

import gc
import os
import random
import signal
import threading
from pathlib import Path

import pytest
from federations import QUICK, task

import pagefl
from pagefl.core.block import Block
from pagefl.runtime.workers import Workers


def bits(run) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in run.state.items()}


def dying(work, marker: Path, deaths: int):
    """Dies like a killed process after its rows are written, before it has answered: what it began with is
    gone.
    """

    def work_and_die(self, job):
        answer = work(self, job)
        if job.kind == "train" and job.round == 2:
            for death in range(deaths):
                try:
                    os.close(os.open(marker.with_name(f"{marker.name}-{death}"), os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                os.kill(os.getpid(), signal.SIGKILL)
        return answer

    return work_and_die


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "ditto", "feddyn"])
def test_a_piece_whose_worker_died_is_done_again(name, monkeypatch, tmp_path):
    options = {"algorithm": {"name": name, **QUICK.get(name, {})}, "rounds": 3, "workers": 2, "chunk": 2}
    straight = pagefl.run(task=task("mlp"), **options)
    monkeypatch.setattr(Block, "work", dying(Block.work, tmp_path / "death", 2))
    said: list[str] = []
    disturbed = pagefl.run(task=task("mlp"), **options, say=said.append)
    assert len(list(tmp_path.iterdir())) == 2
    assert sum("a worker process died" in line for line in said) == 2
    assert bits(disturbed) == bits(straight)
    assert disturbed.client_rounds == straight.client_rounds


def test_work_that_kills_every_worker_ends_in_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(Block, "work", dying(Block.work, tmp_path / "death", 1000))
    with pytest.raises(
        pagefl.UserError, match=r"3 worker processes died of the same piece of work .* fewer `workers`"
    ):
        pagefl.run(task=task("mlp"), rounds=3, workers=2, chunk=5, out=tmp_path / "run")
    monkeypatch.undo()
    assert pagefl.resume(tmp_path / "run", task=task("mlp")).over  # nothing is lost


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried …")]
)
def test_no_memory_is_one_sentence(workers, error, monkeypatch):
    def work(self, job):
        raise error

    monkeypatch.setattr(Block, "work", work)
    with pytest.raises(pagefl.UserError, match="there is not enough memory"):
        pagefl.run(task=task("mlp"), rounds=3, workers=workers)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaffold", "ditto", "feddyn"])
def test_workers_killed_at_random_instants(name):
    """kill -9 of whichever child, in every second round."""
    options = {
        "task": {"name": "synthetic", "clients": 12},
        "algorithm": name,
        "rounds": 40,
        "workers": 2,
        "chunk": 3,
    }
    straight = pagefl.run(**options)
    usual = straight.history.seconds.median()
    chance, timers = random.Random(name), []

    def kill() -> None:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        if children:
            os.kill(int(chance.choice(children)), signal.SIGKILL)

    def soon(entry) -> None:
        if entry["round"] % 2 == 0 and entry["round"] < 40:
            timers.append(threading.Timer(chance.uniform(0, usual), kill))
            timers[-1].start()

    said: list[str] = []
    disturbed = pagefl.run(**options, say=said.append, observe=soon)
    for timer in timers:
        timer.join()
    assert any("a worker process died" in line for line in said)  # how often depends on the machine
    assert bits(disturbed) == bits(straight)


class Cluster:
    """Something whose last reference tells a server that it is gone, in a cycle."""

    def __init__(self, told: Path) -> None:
        self.told, self.itself = told, self

    def __del__(self) -> None:
        self.told.write_text(str(os.getpid()))


def test_a_worker_leaves_its_parents_garbage_alone(tmp_path):
    """Ray's store dies of a message from a process that was forked from its driver."""
    gc.disable()
    try:
        Cluster(tmp_path / "told")
        workers = Workers(1, lambda job: gc.collect(), lambda job: lambda: None, lambda line: None)
        try:
            workers.run(["collect"])
            assert not (tmp_path / "told").exists()
        finally:
            workers.close()
    finally:
        gc.enable()
    gc.collect()
    assert (tmp_path / "told").read_text() == str(os.getpid())
