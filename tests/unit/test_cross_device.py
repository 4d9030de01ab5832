"""Federations whose clients are fetched: the models of a federation in memory, and nothing that grows."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import pagefl
from pagefl.algorithms import ALGORITHMS
from pagefl.cli import main
from pagefl.core import cohort
from pagefl.core.errors import UserError
from pagefl.data.source import FolderSource
from pagefl.data.synthetic import SyntheticSource, synthetic
from pagefl.models.logistic import logistic
from pagefl.models.mlp import Mlp

OPTIONS = {"rounds": 3, "participation": 0.3, "seed": 3, "epochs": 2, "batch_size": 20, "workers": 1}
NEVER = {"personal": {"when": "never"}}


def run(data, algorithm="fedavg", module=lambda: logistic(30, 30), **settings):
    task = pagefl.Task("synthetic-by-hand", module, data)
    return pagefl.run(task=task, algorithm=algorithm, **{**OPTIONS, **settings})


def assert_same_server(one, other) -> None:
    names = [name for name in one.state if name.startswith(("server.", "server_agent."))]
    assert names
    assert all(torch.equal(one.state[name], other.state[name]) for name in names)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_a_fetched_federation_learns_what_one_in_memory_learns(algorithm):
    def module():
        return Mlp(30, 30, 4)

    held, fetched = (
        run(data, algorithm, module, **NEVER) for data in (synthetic(12, 3), SyntheticSource(12, 3))
    )
    assert_same_server(held, fetched)
    assert list(fetched.history.local_of.unique()) == ["participants"]


@pytest.mark.parametrize("settings", [{"players": "page-shared"}, {"players": "fedex"}, {"holdout": 0.3}])
def test_so_it_does_with_players_a_hold_out_and_the_personal_step(settings):
    """The sample is everybody here, so that the personal step is the same too."""
    held, fetched = (run(data, "scaffold", **settings) for data in (synthetic(12, 3), SyntheticSource(12, 3)))
    assert_same_server(held, fetched)
    ends = [each.history.personal_accuracy.iloc[-1] for each in (held, fetched)]
    assert ends[0] == ends[1]
    for client in (0, 11):
        models = [each.personal(client).state_dict() for each in (held, fetched)]
        assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_workers_change_no_bit():
    one, two = (run(SyntheticSource(40, 3), "ditto", workers=count) for count in (1, 2))
    assert all(torch.equal(one.state[name], two.state[name]) for name in one.state)
    drop = [{name: value for name, value in entry.items() if name != "seconds"} for entry in one.rounds]
    assert drop == [{n: v for n, v in entry.items() if n != "seconds"} for entry in two.rounds]


SPEC = ["--task", "synthetic", "--clients", "20000", "--set", "participation=0.002", "--epochs", "1"]
SPEC += ["--algorithm", "scaffold", "--set", "checkpoint_seconds=0", "--set", "batch_size=50"]


def command(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["pagefl", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code


@pytest.mark.slow
def test_resume_after_a_kill_is_exact(tmp_path, monkeypatch):
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    arguments = ["run", *SPEC, "--rounds", "8", "--out"]
    command(monkeypatch, *arguments, str(straight))
    process = subprocess.Popen(
        [sys.executable, "-m", "pagefl", *arguments, str(killed)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while (
        not (killed / "rounds.jsonl").exists() or len((killed / "rounds.jsonl").read_bytes().splitlines()) < 3
    ):
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    command(monkeypatch, "resume", str(killed))
    one, other = (pagefl.load(path) for path in (straight, killed))
    assert torch.equal(one.state["server.model"], other.state["server.model"])
    assert one.rounds[-1]["global_loss"] == other.rounds[-1]["global_loss"]
    assert (straight / "clients.jsonl").read_bytes() == (killed / "clients.jsonl").read_bytes()
    rows = [
        cohort.SparseRows(20000, {"own": one.state["server.model"]}, path / "clients.rows")
        for path in (straight, killed)
    ]
    for store, each in zip(rows, (one, other), strict=True):
        store.load(each.state)
    numbers = one.state["store.clients"].numpy()
    assert len(numbers) > 200
    held = [{"own": torch.zeros(len(numbers), 930)} for _ in rows]
    for store, into in zip(rows, held, strict=True):
        store.read(numbers, into)
    assert torch.equal(held[0]["own"], held[1]["own"])


def test_nothing_grows_with_the_number_of_clients(tmp_path):
    small, large = (
        run(SyntheticSource(clients, 3), "ditto", participation=10 / clients, out=tmp_path / str(clients))
        for clients in (200, 200_000)
    )
    sizes = [
        {path.name: path.stat().st_size for path in run.directory.iterdir() if path.name != "report.html"}
        for run in (small, large)
    ]
    for name, size in sizes[0].items():
        assert sizes[1][name] <= 1.2 * size + 1000, name
    record = json.loads((large.directory / "clients.jsonl").read_text().splitlines()[-1])
    assert len(record["client"]) == len(record["lr"]) <= 110
    assert large.clients.client.max() > 1000
    assert large.history.before_of.iloc[-1] == "a fixed sample of 100"


def test_a_client_without_a_model_of_its_own_is_named():
    done = run(SyntheticSource(5000, 3), participation=0.001)
    with pytest.raises(UserError, match="client = 1: the personal step was taken by 100 clients"):
        done.personal(1)
    done.personal(int(done.state["clients.stepped_clients"][0]))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"players": "page"}, "players = Page: each client has an agent of its own.*use page-shared"),
        ({"players": "dapfl"}, "players = DapFl: each client has an agent"),
        ({"executor": "ray"}, "executor = ray: .*expected local"),
        ({"stop": "equilibrium"}, "stop = equilibrium: .*expected rounds"),
        ({"stages_every": 1}, "stages_every = 1: .*expected 0"),
    ],
)
def test_what_needs_all_clients_is_refused(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        run(SyntheticSource(30, 3), **settings)


class Own(pagefl.ClientSource):
    clients = 50

    def __init__(self, wrong=None):
        self.wrong = wrong

    def client(self, number):
        chance = np.random.default_rng(number)
        x = chance.normal(size=(12, 3))
        y = (x.sum(1) > 0).astype(int)
        if number == 17 and self.wrong:
            return self.wrong(x, y)
        return (x[:8], y[:8]), (x[8:], y[8:])

    def server(self):
        parts = [self.client(number)[1] for number in range(10)]
        return tuple(np.concatenate(side) for side in zip(*parts, strict=True))


def test_own_source():
    task = pagefl.Task("own", torch.nn.Linear(3, 2), Own())
    done = pagefl.run(task=task, rounds=15, lr=0.5, participation=0.2)
    assert done.history.global_accuracy.iloc[-1] > 0.8
    assert "50 clients" in repr(task)


def failing(x, y):
    raise OSError("the disk is gone")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda x, y: (x, y), "client 17"),
        (lambda x, y: ((x, y), (x[:, :2], y)), "client 17 .*must agree"),
        (lambda x, y: ((x, y + 5), (x, y)), r"client 17 \(train\): y has label"),
        (lambda x, y: ((x * np.nan, y), (x, y)), "client 17 .train.*"),
        (lambda x, y: "nothing", "client 17: client.. returned a str"),
        (failing, "client 17: client.. failed: OSError: the disk is gone"),
    ],
)
def test_a_wrong_client_is_named(wrong, sentence):
    task = pagefl.Task("own", torch.nn.Linear(3, 2), Own(wrong))
    with pytest.raises(UserError, match=sentence):
        pagefl.run(task=task, rounds=1, participation=1.0, workers=1)


@pytest.mark.parametrize("count", [None, 0, "many", True])
def test_a_source_has_a_number_of_clients(count):
    source = Own()
    source.clients = count
    with pytest.raises(UserError, match=r"Own\.clients = "):
        pagefl.run(task=pagefl.Task("own", torch.nn.Linear(3, 2), source), rounds=1)


def test_a_folder_of_files(tmp_path):
    own = Own()
    for number in range(own.clients):
        (x, y), (test_x, test_y) = own.client(number)
        (tmp_path / "0").mkdir(exist_ok=True)
        np.savez(tmp_path / "0" / f"{number}.npz", x=x, y=y, test_x=test_x, test_y=test_y)
    x, y = own.server()
    np.savez(tmp_path / "server.npz", x=x, y=y)
    (tmp_path / "federation.json").write_text('{"clients": 50}')
    module = torch.nn.Linear(3, 2)
    runs = [
        pagefl.run(task=pagefl.Task("own", module, data), rounds=2, participation=0.2)
        for data in (own, FolderSource(tmp_path))
    ]
    assert_same_server(*runs)
    (tmp_path / "0" / "4.npz").write_bytes(b"no archive")
    with pytest.raises(UserError, match=r"4\.npz cannot be read"):
        FolderSource(tmp_path).client(4)
    np.savez(tmp_path / "0" / "5.npz", x=np.array([print], dtype=object))
    with pytest.raises(UserError, match=r"5\.npz"):
        FolderSource(tmp_path).client(5)
    for text in ("{", "[]", '{"clients": -1}', '{"clients": "many"}'):
        (tmp_path / "federation.json").write_text(text)
        with pytest.raises(UserError, match=r"federation\.json"):
            FolderSource(tmp_path)


def test_other_data_are_noticed(tmp_path):
    run(SyntheticSource(300, 3), participation=0.02, out=tmp_path / "run")
    task = pagefl.Task("synthetic-by-hand", lambda: logistic(30, 30), SyntheticSource(300, 4))
    with pytest.raises(UserError, match="the data differ"):
        pagefl.resume(tmp_path / "run", task=task, rounds=5)
