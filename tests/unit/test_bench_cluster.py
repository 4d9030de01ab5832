"""What `pagefl bench cluster` counts, against the arrays that pass through a stand-in for Ray."""

import pickle
from copy import deepcopy
from types import SimpleNamespace

import pytest

from pagefl.bench import cluster_cost
from pagefl.experiments.builders import synthetic
from pagefl.runtime import actor, ray_blocks
from pagefl.runtime.settings import Settings


class StandIn:
    """Ray in this process. It counts the bytes of arrays as pickle finds them."""

    def __init__(self):
        self.bytes = 0
        lost = type("Lost", (Exception,), {})
        names = ("RayActorError", "ObjectLostError", "WorkerCrashedError", "ObjectStoreFullError")
        self.exceptions = SimpleNamespace(**dict.fromkeys((*names, "OutOfDiskError"), lost))
        self.cloudpickle = SimpleNamespace(register_pickle_by_value=lambda module: None)

    def cluster_resources(self):
        return {"CPU": 2}

    available_resources = cluster_resources

    def remote(self, kind):
        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=lambda: Handle(self, kind())))

    def put(self, value):
        return Stored(deepcopy(value))

    def get(self, value):
        return value.value if isinstance(value, Stored) else value

    def kill(self, actor):
        pass

    def count(self, message):
        found = []
        pickle.dumps(message, protocol=5, buffer_callback=found.append)
        self.bytes += sum(buffer.raw().nbytes for buffer in found)


class Stored:
    def __init__(self, value):
        self.value = value


class Handle:
    """An actor. What is stored is fetched once."""

    def __init__(self, ray, own):
        self.ray, self.own, self.fetched = ray, own, []

    def __getattr__(self, name):
        return SimpleNamespace(remote=lambda *given: self.call(name, given))

    def call(self, name, given):
        for each in given:
            if not isinstance(each, Stored):
                self.ray.count(each)
            elif each not in self.fetched:
                self.fetched.append(each)
                self.ray.count(each.value)
        answer = getattr(self.own, name)(*(g.value if isinstance(g, Stored) else g for g in given))
        self.ray.count(answer)
        return answer


@pytest.fixture
def stand_in(monkeypatch):
    found = StandIn()
    monkeypatch.setattr(ray_blocks, "connect", lambda address, store: (found, False))
    for name in ("one_thread", "keep_memory"):  # this process is not an actor's own
        monkeypatch.setattr(actor, name, lambda: None)
    return found


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "feddyn", "ditto"])
def test_bytes_of_a_round(stand_in, algorithm):
    own = {"epochs": 1, "batch_size": 50, "chunk": 8, "personal": {"when": "never"}}
    settings, moved = Settings(executor="ray", workers=2, **own), {}
    for clients in (16, 64):
        task = synthetic(0, clients)
        with cluster_cost.playing_rounds(task, settings, algorithm) as (rounds, simulation):
            rounds.play()
            before = stand_in.bytes - simulation.blocks.moved  # what it was built of
            moved[clients] = cluster_cost.moved_in_a_round(rounds, simulation)
            assert simulation.blocks.moved == stand_in.bytes - before
    row = simulation.server.model_row.nbytes
    assert moved[16] >= 4 * row
    assert moved[64] - moved[16] < (64 - 16) * row / 10  # what grows is some numbers of each client
