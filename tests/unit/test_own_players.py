"""Players and algorithms of the user's own: as objects, by module:Class, in resumes and sweeps, and never
from a stranger.
"""

import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from federations import task

import pagefl
from pagefl.experiments import own_code
from pagefl.experiments import spec as specs

MODULE = """
from dataclasses import dataclass
import numpy as np
import torch
import pagefl

@dataclass(frozen=True)
class Halving(pagefl.Players):
    factor: float = 0.5

    def client_policy(self, setup):
        return HalvingClients(setup, self.factor)

class HalvingClients(pagefl.ClientPolicy):
    def __init__(self, setup, factor):
        super().__init__(setup)
        self.factor, self.lr = factor, torch.full((setup.clients,), setup.lr, dtype=torch.float64)

    @property
    def tensors(self):
        return {"lr": self.lr}

    def act(self, round, clients, seen):
        moves = super().act(round, clients, seen)
        return pagefl.Moves(self.lr[torch.from_numpy(clients)].numpy(), moves.epochs)

    def reward(self, round, clients, outcome):
        self.lr[torch.from_numpy(clients)] *= self.factor

@dataclass(frozen=True)
class Prox(pagefl.Algorithm):
    mu: float = 0.1

    def local(self, clients):
        sent = clients.sent["model"]
        rows = clients.train(sent, mu=self.mu, anchor=sent)
        return pagefl.Local(upload={"model": rows}, personal=rows)
"""
SMALL = {"task": {"name": "synthetic", "clients": 4}, "rounds": 4, "epochs": 1, "workers": 1}


@dataclass(frozen=True)
class Largest(pagefl.Players):
    """All weight, but a little, to the largest client."""

    rest: float = 0.1

    def server_policy(self, setup):
        return LargestServer(setup, self.rest)


class LargestServer(pagefl.ServerPolicy):
    def __init__(self, setup, rest):
        super().__init__(setup)
        self.rest = rest

    def act(self, round, clients, uploads):
        weights = np.full(len(clients), self.rest / len(clients))
        weights[np.argmax(uploads.sizes)] += 1 - self.rest
        return weights


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "my_code.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("my_code", None)


def test_an_object_plays_and_is_written_down(tmp_path):
    run = pagefl.run(task=task(), players=Largest(rest=0.2), out=tmp_path / "run")
    assert run.clients.query("round == 1").weight.tolist() == pytest.approx([0.04, 0.04, 0.84, 0.04, 0.04])
    assert specs.read(tmp_path / "run" / "spec.toml")["players"] == {"name": "largest", "rest": 0.2}


def test_by_module_and_class(own_module):
    run = pagefl.run(
        **SMALL, players={"name": "my_code:Halving", "factor": 0.1}, algorithm="my_code:Prox", lr=0.1
    )
    assert run.history.mean_lr.tolist() == pytest.approx([0.1, 0.01, 1e-3, 1e-4])
    assert torch.equal(
        pagefl.run(**SMALL, algorithm="my_code:Prox").state["server.model"],
        pagefl.run(**SMALL, algorithm={"name": "fedprox", "mu": 0.1}).state["server.model"],
    )


def test_resume_is_exact_and_asks_for_the_name_again(own_module):
    options = {**SMALL, "players": "my_code:Halving", "algorithm": "my_code:Prox", "participation": 0.5}
    straight = pagefl.run(**{**options, "rounds": 6}, out="straight")
    pagefl.run(**options, out="stopped")
    with pytest.raises(
        pagefl.UserError, match="uses algorithm = 'my_code:Prox', which is code of your own machine"
    ):
        pagefl.resume("stopped", rounds=6)
    resumed = pagefl.resume("stopped", rounds=6, players="my_code:Halving", algorithm="my_code:Prox")
    assert {n: t.numpy().tobytes() for n, t in resumed.state.items()} == {
        n: t.numpy().tobytes() for n, t in straight.state.items()
    }


@pytest.mark.slow
def test_code_is_never_taken_from_a_run_directory(own_module, monkeypatch):
    """A stranger's run directory, with a module beside its spec; the user is so careless as to work in it."""
    pagefl.run(**SMALL, out="run")
    folder = own_module / "run"
    (folder / "evil.py").write_text("raise SystemExit('it ran')")
    spec = (folder / "spec.toml").read_text()
    (folder / "spec.toml").write_text(spec.replace('name = "fixed"', 'name = "evil:Players"'))
    monkeypatch.chdir(folder)
    (folder / "checkpoint").unlink()
    (folder / "checkpoint.previous").unlink()
    program = (  # the folder is on sys.path, as with `python -m pagefl`
        "import sys; from contextlib import suppress; from pagefl.cli import main\n"
        "assert sys.path[0] == ''\n"
        "for command in ('resume', 'verify', 'report', 'compare'):\n"
        "    sys.argv = ['pagefl', command, '.']\n"
        "    with suppress(SystemExit): main()\n"
        "    assert 'evil' not in sys.modules\n"
        "print('all refused')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "it ran" not in done.stderr + done.stdout
    assert "all refused" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("my_code:", "expected module:Class"),
        (":Halving", "expected module:Class"),
        ("my_code:Halving:x", "expected module:Class"),
        ("os:system", "has no class system that is a pagefl.Players"),
        ("my_code:Prox", "has no class Prox that is a pagefl.Players"),
        ("my_code:Nobody", "has no class Nobody"),
        ("no_such_module:Players", "cannot be imported"),
        ("../x:Players", "expected module:Class"),
    ],
)
def test_bad_names_are_one_sentence(own_module, name, words):
    with pytest.raises(pagefl.UserError) as refusal:
        specs.resolve({"players": name})
    assert words in str(refusal.value)


def test_settings_of_own_code_are_checked(own_module):
    with pytest.raises(
        pagefl.UserError, match=r"players.factr = 1: there is no such setting; did you mean factor"
    ):
        specs.resolve({"players": {"name": "my_code:Halving", "factr": 1}})


def test_the_import_path_is_left_as_it_was(own_module):
    before = list(sys.path)
    own_code.find("players", "my_code:Halving")
    assert sys.path == before


def test_ranges_follow_an_own_tasks_lr_and_epochs():
    own = task()
    own.settings |= {"lr": 1.0, "epochs": 3}
    assert specs.resolve({"players": "page-shared"}, own).players["epochs_max"] >= 3
    for players in ("page", "random", "dapfl", "fedex"):
        spec = specs.resolve({"players": players}, own)
        assert spec.players["lr_min"] < 1.0 < spec.players["lr_max"]
        assert spec.players["epochs_max"] >= 3


def test_ranges_reach_the_runs_own_lr_unless_they_are_given():
    assert specs.resolve({"players": "page"}).players["lr_max"] == 0.1
    assert specs.resolve({"players": "page", "lr": 1.0}).players["lr_max"] == 1.0
    assert specs.resolve({"players": {"name": "page", "lr_max": 0.2}, "lr": 1.0}).players["lr_max"] == 0.2
    assert specs.resolve({"players": "page", "epochs": 30}).players["epochs_max"] == 30
