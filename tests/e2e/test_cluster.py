"""A two-node Ray cluster on this machine: the bits of a local run, whatever dies."""

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import federations
import pytest
import torch

import pagefl
from pagefl.algorithms import ALGORITHMS
from pagefl.core.errors import UserError
from pagefl.game.players import PLAYERS
from pagefl.runtime import ray_blocks

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]
CLIENTS = 24  # three groups of eight
SIZES = tuple(3 + 7 * i % 23 for i in range(CLIENTS))
SECONDS = 600.0  # a busy machine is slow, and only what never ends fails


@pytest.fixture(scope="module")
def two_nodes():
    from ray.cluster_utils import Cluster

    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_worker_niceness="0")
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    found.add_node(num_cpus=2)
    ray.init(found.address, log_to_driver=False)
    yield found
    ray.shutdown()
    found.shutdown()


@pytest.fixture
def pooled(two_nodes, monkeypatch):
    """Actors go from run to run: starting one takes longer than these runs."""
    start = ray_blocks.RayBlocks._start
    monkeypatch.setattr(ray_blocks.RayBlocks, "_start", lambda self: POOL.pop() if POOL else start(self))
    monkeypatch.setattr(ray_blocks.RayBlocks, "_end", lambda self, actor: POOL.append(actor))
    return two_nodes.address


POOL: list[object] = []


@pytest.fixture
def nodes(two_nodes):
    """All of their CPUs are free."""
    while POOL:
        ray.kill(POOL.pop())
    return two_nodes


def assert_same(ours, theirs) -> None:
    assert ours.state.keys() == theirs.state.keys()
    for name, value in theirs.state.items():
        assert torch.equal(ours.state[name], value), name
    for ours_of, theirs_of in zip(ours.rounds, theirs.rounds, strict=True):
        assert {**ours_of, "seconds": 0} == {**theirs_of, "seconds": 0}
    for ours_of, theirs_of in zip(ours.client_rounds, theirs.client_rounds, strict=True):
        assert json.dumps(ours_of) == json.dumps(theirs_of)


def settings(**more: object) -> dict:
    return {"rounds": 3, "epochs": 2, "batch_size": 8, "participation": 0.7, "chunk": 8, **more}


def players_of(name: str) -> dict:
    """So that agents learn in so few rounds."""
    return {"name": name, "warm_up": 1} if name in ("page", "dapfl") else {"name": name}


def algorithm_of(name: str) -> dict:
    return {"name": name, **federations.QUICK.get(name, {})}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm(name, pooled):
    """On a network, one layer of which is the head."""
    own = settings(task=federations.task("mlp", personal="end", sizes=SIZES), algorithm=algorithm_of(name))
    assert_same(pagefl.run(**own, executor="ray", address=pooled, workers=3), pagefl.run(**own))


@pytest.mark.parametrize("name", PLAYERS)
def test_all_players(name, pooled):
    """On the linear kernel, with the rule of SCAFFOLD, where clients keep something; any number of actors."""
    own = settings(
        task={"name": "synthetic", "clients": CLIENTS}, algorithm="scaffold", players=players_of(name)
    )
    local = pagefl.run(**own)
    for actors in (1, 2, 3):
        assert_same(pagefl.run(**own, executor="ray", address=pooled, workers=actors), local)


@pytest.mark.parametrize("players", ["fixed", "page"])
def test_convolutions(players, pooled):
    task = federations.task("net", sizes=SIZES[:6])
    own = settings(task=task, algorithm="ditto", players=players_of(players), participation=1.0, chunk=0)
    assert_same(pagefl.run(**own, executor="ray", address=pooled, workers=3), pagefl.run(**own))


def focal(logits, labels):
    chance = logits.softmax(1).gather(1, labels[:, None])[:, 0]
    return -((1 - chance) ** 2) * chance.log()


def test_a_loss_of_ones_own(pooled):
    """In training, rewards and the personal step. It is sent by value: this module is not installed."""
    given = {**federations.SETTINGS, "personal": {"when": "end"}}

    def run(loss, **more):
        task = pagefl.Task("own", federations.MODULES["mlp"], federations.data(sizes=SIZES), given, loss)
        return pagefl.run(**settings(task=task, players="page-shared"), **more)

    local = run(focal)
    assert_same(run(focal, executor="ray", address=pooled, workers=3), local)
    assert local.rounds[-1]["global_loss"] != run(None).rounds[-1]["global_loss"]


class InPlace(pagefl.Algorithm):
    """Writes into Ray's store, which all actors of a machine read."""

    same_rows = (("upload.model", "personal"),)

    def local(self, clients):
        clients.sent["model"].mul_(0.5)
        return super().local(clients)


def test_an_algorithm_that_writes_to_what_it_was_sent(pooled):
    def wide():
        return torch.nn.Sequential(torch.nn.Linear(6, 20_000), torch.nn.Linear(20_000, 4))  # 1.1 MB

    task = pagefl.Task("own", wide, federations.data(), {**federations.SETTINGS, "rounds": 1})
    with pytest.raises(UserError, match=r"^InPlace writes into a tensor that its clients share"):
        pagefl.run(task=task, algorithm=InPlace(), chunk=1, executor="ray", address=pooled, workers=2)


@dataclass(frozen=True)
class Mortal(pagefl.Algorithm):
    """Once, whoever trains client 20 says so and dies, or waits to be removed."""

    flag: str = ""
    waits: bool = False

    same_rows = (("upload.model", "personal"),)

    def client_state(self, row, layout):
        return {"trained": torch.zeros(1)}

    def local(self, clients):
        done, flag = super().local(clients), Path(self.flag)
        third = 20 in clients.numbers[clients.ids] and float(clients.kept["trained"].max()) == 2
        if self.flag and third and not flag.exists():
            flag.touch()
            sleep(30.0) if self.waits else os.kill(os.getpid(), signal.SIGKILL)
        return pagefl.Local(done.upload, done.personal, {"trained": clients.kept["trained"] + 1})


def mortal(**more: object) -> dict:
    return settings(
        task={"name": "synthetic", "clients": CLIENTS}, rounds=5, participation=1.0, workers=2, **more
    )


def test_an_actor_that_dies_in_a_round(nodes, tmp_path):
    """Its clients go on from the state that they had, though no checkpoint has been written since."""
    own = mortal()
    said: list[str] = []
    run = pagefl.run(
        **own,
        algorithm=Mortal(str(tmp_path / "flag")),
        executor="ray",
        address=nodes.address,
        say=said.append,
    )
    assert (tmp_path / "flag").exists()
    assert any("another one takes its place" in line for line in said)
    assert_same(run, pagefl.run(**own, algorithm=Mortal()))


def test_a_node_that_is_removed_in_a_round(nodes, tmp_path):
    node, flag = nodes.add_node(num_cpus=2), tmp_path / "flag"

    def remove() -> None:
        end = monotonic() + SECONDS
        while not flag.exists() and monotonic() < end:
            sleep(0.1)
        nodes.remove_node(node, allow_graceful=False)

    thread = threading.Thread(target=remove)
    thread.start()
    own = mortal()
    own["workers"] = 3
    run = pagefl.run(**own, algorithm=Mortal(str(flag), waits=True), executor="ray", address=nodes.address)
    thread.join()
    assert_same(run, pagefl.run(**own, algorithm=Mortal()))


def test_a_driver_that_is_killed_goes_on(nodes, tmp_path):
    """On the cluster, and then on this machine alone: checkpoints are the same."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "pagefl", "run", "--task", "synthetic", "--clients", str(CLIENTS)]
    command += ["--algorithm", "scaffold", "--rounds", "200", "--set", "checkpoint_seconds=0.2"]
    command += ["--set", "personal.when=never", "--executor", "ray", "--address", nodes.address]
    command += ["--workers", "2", "--set", "chunk=8", "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    end = monotonic() + SECONDS
    while not (out / "checkpoint.previous").exists() or len((out / "rounds.jsonl").read_text()) < 5000:
        assert process.poll() is None
        assert monotonic() < end
        sleep(0.05)
    process.kill()
    process.wait()
    resumed = pagefl.resume(out, rounds=200)
    assert_same(
        resumed,
        pagefl.run(
            task={"name": "synthetic", "clients": CLIENTS},
            algorithm="scaffold",
            rounds=200,
            chunk=8,
            personal={"when": "never"},
        ),
    )


def test_what_the_cluster_does_not_have_is_named(nodes, monkeypatch):
    own = {**settings(task={"name": "synthetic", "clients": CLIENTS}), "executor": "ray"}
    with pytest.raises(UserError, match=r"workers = 99: the Ray cluster has \d+ CPUs"):
        pagefl.run(**own, address=nodes.address, workers=99)
    other = ray_blocks.versions
    monkeypatch.setattr(ray_blocks, "versions", lambda how: {**other(how), "numba": "0.1"})
    with pytest.raises(UserError, match=r"actor 0 has numba .*, and this process has 0\.1"):
        pagefl.run(**own, address=nodes.address, workers=1)


def test_a_missing_ray_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"executor = ray needs Ray; .*pagefl\[cluster\]"):
        pagefl.run(**settings(task={"name": "synthetic", "clients": CLIENTS}), executor="ray")


def test_bad_settings_are_refused_before_anything_starts():
    own = settings(task={"name": "synthetic", "clients": CLIENTS})
    with pytest.raises(UserError, match="executor"):
        pagefl.run(**own, executor="dask")
    with pytest.raises(UserError, match="device = meta: executor = ray trains on CPUs"):
        pagefl.run(**own, executor="ray", device="meta")
