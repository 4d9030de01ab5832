"""Bad input ends in one sentence that names the field, the value and what would be valid."""

import subprocess
import sys
import tomllib
from dataclasses import dataclass

import pytest
from federations import task

import pagefl
from pagefl import Algorithm, RunSpec, Task, UserError
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
        ({"task": "synthetik"}, ["task = 'synthetik'", "did you mean synthetic", "expected one of"]),
        ({"task": 7}, ["task = 7", "expected a name"]),
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
    spec = specs.resolve({"algorithm": "page", "players": {"name": "page", "temperature": 2.0}})
    assert spec == specs.resolve({"algorithm": "page", "players": {"temperature": 2.0}})
    assert (spec.algorithm["name"], spec.players["name"], spec.players["temperature"]) == (
        "fedavg",
        "page",
        2.0,
    )
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


def test_own_objects_decide_their_settings(monkeypatch):
    """What is asked for beside a user's own task or algorithm would be ignored, so it is refused; what agrees
    is not.
    """
    from pagefl import api
    from pagefl.algorithms import ALGORITHMS

    seen = []
    monkeypatch.setattr(api, "launch", lambda spec, *_: seen.append(spec))
    mine, rule = task(), ALGORITHMS["fedprox"](mu=0.5)
    with pytest.raises(UserError, match=r"task\.clients = 7: your own task .* has no setting 'clients'"):
        api.run(task=mine, clients=7)
    for raw in ({"task": {"name": "synthetic"}}, {"task": {"name": mine.name, "delta": 1}}):
        with pytest.raises(UserError, match="your own task"):
            specs.resolve(raw, mine)
    for raw in ({"algorithm": {"mu": 0.1}}, {"algorithm": {"lam": 0.1}}, {"algorithm": "page"}):
        with pytest.raises(UserError, match=r"your own algorithm 'fedprox' has"):
            specs.resolve(raw, None, rule)
    # by name goes before the spec
    api.run(specs.resolve({"lr": 0.3, "algorithm": "ditto"}), task=mine, algorithm=rule)
    assert (seen[0].task, seen[0].algorithm, seen[0].lr) == (
        {"name": mine.name},
        {"name": "fedprox", "mu": 0.5},
        0.3,
    )
    assert specs.resolve(seen[0].model_dump(), mine, rule) == seen[0]
    with pytest.raises(UserError, match="must be one line of text"):
        specs.resolve({}, Task("", mine.module, mine.data))


def test_settings_that_toml_cannot_hold_are_written_as_their_type():
    @dataclass(frozen=True)
    class Mine(Algorithm):
        schedule: object = len
        steps: tuple[int, ...] = (1, 2)

    spec = specs.resolve({}, None, Mine())
    assert spec.algorithm == {"name": "mine", "schedule": "len", "steps": [1, 2]}
    assert specs.resolve(tomllib.loads(spec.toml()), None, Mine()) == spec


def test_an_empty_path_is_no_spec():
    with pytest.raises(UserError, match="is a directory"):
        pagefl.run("")


def test_a_value_is_never_longer_than_a_line():
    for value in ("x" * 10**5, list(range(10**5)), 10**6000, {"a": "\n" * 10**4}):
        with pytest.raises(UserError) as refusal:
            specs.resolve({"lr": value})
        assert len(str(refusal.value)) < 160
        assert str(refusal.value).isprintable()


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


@pytest.mark.slow
def test_the_program_itself_ends_with_2_and_a_sentence(tmp_path):
    """As a process of its own; test_command_lines.py has many more, within one process."""
    done = subprocess.run(
        [sys.executable, "-m", "pagefl", "run", "x.toml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "pagefl: spec = x.toml: there is no such file; expected a TOML file of settings\n"
    assert not list(tmp_path.iterdir())
