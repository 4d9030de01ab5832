"""Bad input ends in one sentence that names the field, the value and what would be valid."""

import subprocess
import sys

import pytest

from pagefl import RunSpec, UserError
from pagefl.experiments import spec as specs


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"round": 3}, ["round = 3", "did you mean rounds"]),
        ({"rounds": -1}, ["rounds = -1", "greater than or equal to 1"]),
        ({"rounds": 1.5}, ["rounds = 1.5", "integer"]),
        ({"rounds": "ten"}, ["rounds = 'ten'", "integer"]),
        ({"rounds": True}, ["rounds = True", "integer"]),
        ({"lr": float("nan")}, ["lr = nan", "finite"]),
        ({"lr": float("inf")}, ["lr = inf", "finite"]),
        ({"lr": 0.0}, ["lr = 0.0", "greater than 0"]),
        ({"clip": float("nan")}, ["clip = nan"]),
        ({"participation": 1.5}, ["participation = 1.5", "less than or equal to 1"]),
        ({"task": {"name": "synthetic", "clients": 0}}, ["task.clients = 0", "greater than or equal to 1"]),
        ({"task": {"name": "synthetic", "client": 5}}, ["task.client = 5", "did you mean clients"]),
        ({"task": "synthetik"}, ["task = 'synthetik'", "did you mean synthetic", "valid is"]),
        ({"task": 7}, ["task = 7", "valid is"]),
        ({"algorithm": "fedavgg"}, ["algorithm = 'fedavgg'", "did you mean fedavg"]),
        ({"algorithm": {"name": "fedavg", "mu": 1}}, ["algorithm.mu = 1", "no such setting"]),
        ({"path": "fast"}, ["path = 'fast'", "'fused'"]),
        ({"seed": -1}, ["seed = -1"]),
    ],
)
def test_one_sentence(raw, words):
    with pytest.raises(UserError) as refusal:
        specs.resolve(raw)
    assert all(word in str(refusal.value) for word in words), str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_paper_settings_then_the_users():
    spec = specs.resolve({"lr": 0.3})
    assert (spec.lr, spec.epochs, spec.batch_size, spec.task["clients"]) == (0.3, 20, 5, 100)


def test_a_nickname_takes_settings_of_its_players():
    spec = specs.resolve({"algorithm": "page", "players": {"temperature": 2.0}})
    assert (spec.algorithm["name"], spec.players["name"], spec.players["temperature"]) == ("fedavg", "page", 2.0)
    assert spec.label == "page"


def test_clients_by_name(monkeypatch):
    from pagefl import api

    seen = []
    monkeypatch.setattr(api, "launch", lambda spec, *_: seen.append(spec.task["clients"]))
    api.run(task="synthetic", clients=7)
    api.run(clients=8)
    with pytest.raises(UserError, match="clients = 0"):
        api.run(task="synthetic", clients=0)
    assert seen == [7, 8]


def test_written_and_read_again_is_the_same(tmp_path):
    spec = specs.resolve({"clip": float("inf"), "task": {"name": "synthetic", "theta": 0.5}})
    (tmp_path / "spec.toml").write_text(spec.toml())
    assert specs.resolve(specs.read(tmp_path / "spec.toml")) == spec
    assert isinstance(spec, RunSpec)


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("lr=0.5", {"lr": 0.5}),
        ("task.clients=7", {"task": {"name": "synthetic", "clients": 7}}),
        ("path=rows", {"path": "rows"}),
        ("clip=inf", {"clip": float("inf")}),
    ],
)
def test_set(assignment, expected):
    raw = {"task": "synthetic"}
    specs.override(raw, assignment)
    assert raw == {"task": "synthetic", **expected}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "missing.toml"], "missing.toml: there is no such file"),
        (["run", "folder"], "folder: there is no such file"),
        (["run", "broken.toml"], "not valid TOML"),
        (["run", "binary.toml"], "not valid TOML"),
        (["run", "--rounds", "many"], "many"),
        (["run", "--no-such-option"], "No such option"),
        (["run", "--set", "lr"], "--set lr"),
        (["run", "--lr", "nan"], "lr = nan"),
        (["run", "--set", "device='warp'", "--rounds", "1"], "device = warp"),
        (["run", "--out", "broken.toml", "--rounds", "1"], "broken.toml"),
        (["run", "--out", "/proc/nowhere/run", "--rounds", "1"], "nowhere"),
        (["resume", "folder"], "not a run directory"),
        (["report", "folder"], "not a run directory"),
        (["list", "things"], "list things"),
        (["show", "nothing"], "show nothing"),
    ],
)
def test_command_line_ends_with_2_and_a_sentence(words, expected, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken.toml").write_text("rounds = = 3")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    before = sorted(tmp_path.rglob("*"))
    done = subprocess.run([sys.executable, "-m", "pagefl", *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout
    assert sorted(tmp_path.rglob("*")) == before
