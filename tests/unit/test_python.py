"""What a researcher meets first in Python: names, short reprs, and values of any type they have at hand."""

import math
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from federations import CLASSES, FEATURES, SETTINGS, data, task
from torch import nn

import pagefl
from pagefl import Algorithm, Task


def test_the_public_names_are_listed():
    names = [name for name in dir(pagefl) if not name.startswith("_")]
    assert set(names) == {*pagefl.__all__, "data"}
    assert {"run", "resume", "Task", "FederatedData", "RunSpec", "UserError"} <= set(names)
    assert all(getattr(pagefl, name) is not None for name in names)


@pytest.mark.slow
def test_names_and_submodules_are_there_after_one_import():
    """In a fresh process: here somebody else may have imported them. A run does without pandas and
    matplotlib, which take half a second each."""
    script = (
        "import sys, pagefl; pagefl.run; assert not {'pandas', 'matplotlib', 'rich'} & sys.modules.keys()\n"
        "import pagefl; assert callable(pagefl.data.augment.crop_and_flip)\n"
        "assert callable(pagefl.data.partition.iid)\n"
        "from pagefl import *; assert run is pagefl.run and Task is pagefl.Task\n"
        "assert 'augment' in dir(pagefl.data)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.fixture(scope="module")
def run():
    return pagefl.run(task=task(personal="end"), algorithm="fedavg", rounds=2)


def test_a_run_is_one_line(run):
    last = run.rounds[-1]
    sides = ("global", "local", "personal")
    accuracies = ", ".join(f"{side} accuracy {last[f'{side}_accuracy']:.3f}" for side in sides)
    assert repr(run) == f"Run(fedavg on small-linear: 2 of 2 rounds, {accuracies})"


def test_a_run_on_disk_says_where(tmp_path):
    made = pagefl.run(task=task(), algorithm="fedprox", rounds=1, out=tmp_path / "run")
    assert repr(made).startswith("Run(fedprox on small-linear: 1 of 1 rounds, global accuracy ")
    assert repr(made).endswith(f", {tmp_path / 'run'})")
    assert repr(pagefl.load(tmp_path / "run", task=task())) == repr(made)


@pytest.mark.parametrize("client", [5, -1, 1.5])
def test_a_client_that_is_not_there(run, client):
    assert isinstance(run.personal(np.int64(4)), nn.Module)
    with pytest.raises(pagefl.UserError, match=f"client = {client}: must be a whole number from 0 to 4"):
        run.personal(client)


def test_data_and_tasks_are_one_line():
    sizes = (3, 17, 40, 25, 9)
    facts = (
        f"{sum(sizes)} training, 40 test, 60 server examples, float32 [{FEATURES}], labels 0 to {CLASSES - 1}"
    )
    assert repr(data(sizes)) == f"FederatedData(5 clients: {facts})"
    own = Task("mine", nn.Linear(FEATURES, CLASSES), data(sizes), {"lr": 0.5})
    assert repr(own) == f"Task(mine: Linear with 28 parameters, 5 clients, {facts}, lr = 0.5)"


def test_looking_at_a_task_does_not_read_its_data():
    def never():
        raise AssertionError

    assert "data not read yet" in repr(Task("mine", never, never))


def test_notebooks_show_what_is_there_and_no_markup_of_others(run):
    odd = Task("<img src=x>", lambda: nn.Linear(FEATURES, CLASSES), data(), SETTINGS)
    played = pagefl.run(task=odd, rounds=1)
    for shown in (odd, played):
        assert "<img" not in shown._repr_html_()
        assert "&lt;img" in shown._repr_html_()
    assert "2 of 2 rounds" in run._repr_html_()
    assert "5 clients" in data()._repr_html_()


def test_numbers_of_other_libraries_are_numbers(run, tmp_path):
    settings = {**SETTINGS, "lr": np.float64(0.3), "epochs": torch.tensor(2), "batch_size": np.uint8(4)}
    own = Task(run.name, task().module, data(), settings)
    same = pagefl.run(
        task=own,
        algorithm="fedavg",
        rounds=np.int64(2),
        seed=np.int32(0),
        freeze=(),
        workers=np.int16(1),
        out=tmp_path / "run",
    )
    assert torch.equal(same.state["server.model"], run.state["server.model"])
    assert (tmp_path / "run" / "spec.toml").is_file()


@dataclass(frozen=True)
class Odd(Algorithm):
    warm_up: int | None = None
    schedule: Callable[[float], float] = math.sqrt
    mu: float = np.float32(0.5)
    layers: tuple[int, ...] = (1, 2)


def test_arguments_of_any_type_are_written_down(tmp_path):
    pagefl.run(task=task(), algorithm=Odd(), rounds=1, out=tmp_path / "run")
    written = tomllib.loads((tmp_path / "run" / "spec.toml").read_text())["algorithm"]
    assert written == {"name": "odd", "schedule": "sqrt", "mu": 0.5, "layers": [1, 2]}


def test_clients_may_be_a_numpy_integer():
    played = pagefl.run(task="synthetic", clients=np.int64(3), rounds=1, epochs=1)
    assert len(played.client_rounds[-1]["local_accuracy"]) == 3


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("task = Task: this is a class; expected an object, such as Task(…)", {"task": Task}),
        ("algorithm = Algorithm: this is a class", {"algorithm": Algorithm}),
        (
            "task is a Sequential; expected a name, a table with a name and settings, or a pagefl.Task",
            {"task": nn.Sequential()},
        ),
        ("algorithm is a int", {"algorithm": 3}),
        ("spec is a Task; expected the path of a TOML file or a pagefl.RunSpec", {"spec": task()}),
        ("spec is a dict", {"spec": {"rounds": 3}}),
        ("rounds = 1.5", {"rounds": np.float64(1.5)}),
        ("lr = [0.1, 0.2]", {"lr": np.array([0.1, 0.2])}),
        ("rounds = '3'", {"rounds": "3"}),
        ("epoch = 3: there is no such setting; did you mean epochs?", {"epoch": 3}),
        ("players = ", {"players": nn.Linear}),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(words, arguments):
    with pytest.raises(pagefl.UserError) as refusal:
        pagefl.run(**arguments)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_path_may_be_a_string(tmp_path):
    pagefl.run(task=task(), rounds=1, out=str(tmp_path / "run"))
    assert Path(tmp_path / "run" / "report.html").is_file()
