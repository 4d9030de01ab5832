"""A checkpoint is bound to the settings and the data that it was made with."""

import os
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch
from federations import CLASSES, FEATURES, SETTINGS, data, linear, task
from torch import nn

import pagefl
from pagefl import Task, api
from pagefl.algorithms import ALGORITHMS
from pagefl.runtime import binding, checkpoint


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(sentence: str, out: Path, **options) -> None:
    before = contents(out)
    with pytest.raises(pagefl.UserError, match=sentence):
        pagefl.resume(out, **options)
    assert contents(out) == before


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    pagefl.run(
        task={"name": "synthetic", "clients": 3}, epochs=1, algorithm="fedprox", rounds=4, workers=1, out=out
    )
    return out


@pytest.fixture
def out(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


def edit(out: Path, old: str, new: str) -> None:
    text = (out / "spec.toml").read_text()
    assert old in text
    (out / "spec.toml").write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("lr = 0.1\n", "lr = 0.2\n", "lr = 0.2, but the checkpoint was made with lr = 0.1"),
        ("seed = 0\n", "seed = 7\n", "seed = 7, but the checkpoint was made with seed = 0"),
        (
            "mu = 0.0001",
            "mu = 0.5",
            "algorithm.mu = 0.5, but the checkpoint was made with algorithm.mu = 0.0001",
        ),
        (
            '"fixed"',
            '"random"',
            'players.name = "random", but the checkpoint was made with players.name = "fixed"',
        ),
        ("clients = 3", "clients = 4", "task.clients = 4"),
        ("epochs = 1\n", "", "epochs is missing, so it is not the complete spec of this run"),
        ("rounds = 4\n", "", "`rounds` is missing"),
    ],
)
def test_an_edited_spec_is_refused_by_name(out, old, new, sentence):
    edit(out, old, new)
    refused(re.escape(f"{out / 'spec.toml'}: {sentence}"), out, rounds=6)
    for read in (
        lambda: pagefl.load(out),
        lambda: api.report([out], out.parent / "page.html"),
        lambda: api.spec_of(out),
    ):
        with pytest.raises(pagefl.UserError, match=re.escape(sentence)):
            read()


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"rounds = [[[", b"rounds = 4\n"])
def test_a_damaged_spec_is_refused_before_anything_is_written(out, content):
    (out / "spec.toml").write_bytes(content)
    refused(r"spec\.toml", out)
    refused(r"spec\.toml", out, rounds=9)
    refused(r"spec\.toml", out, restart=True)


def test_the_spec_is_written_again_only_for_other_rounds(out):
    with (out / "spec.toml").open("a") as file:
        file.write("# a note\n")
    edit(out, "workers = 1", "workers = 2")  # changes speed, never results
    before = (out / "spec.toml").read_bytes()
    assert pagefl.resume(out).over
    assert (out / "spec.toml").read_bytes() == before
    assert pagefl.resume(out, rounds=5).rounds[-1]["round"] == 5
    assert "rounds = 5\n" in (out / "spec.toml").read_text()


def test_models_in_another_order_of_columns_are_refused(out):
    tensors, facts = checkpoint.read(out / checkpoint.NAME)
    before = {name: value for name, value in facts.items() if name != "rows"}  # as 0.1.0 wrote it
    for made in ({**facts, "rows": facts["rows"] + 1}, before):
        checkpoint.save(out, tensors, made)
        refused("the checkpoint holds models in the order of another version of pagefl", out, rounds=6)


def test_other_arithmetic_is_said(out):
    tensors, facts = checkpoint.read(out / checkpoint.NAME)
    said: list[str] = []
    checkpoint.save(out, tensors, {**facts, "arithmetic": "plan, sgemm of torch 1.0"})
    assert pagefl.resume(out, rounds=5, say=said.append).over
    assert pagefl.resume(out, rounds=6, say=said.append).over  # its own arithmetic again: nothing to say
    assert said == [
        f"the run was trained with plan, sgemm of torch 1.0, and goes on with {facts['arithmetic']}: "
        "its last digits will differ"
    ]


def test_another_algorithm_object_is_refused(tmp_path):
    make = ALGORITHMS["fedprox"]
    pagefl.run(task=task(), algorithm=make(mu=0.1), rounds=2, out=tmp_path / "run")
    refused(
        r"algorithm\.mu = 0\.1: your own algorithm .* has mu = 0\.2",
        tmp_path / "run",
        task=task(),
        algorithm=make(mu=0.2),
        rounds=3,
    )
    assert pagefl.resume(tmp_path / "run", task=task(), algorithm=make(mu=0.1), rounds=3).over


@pytest.mark.parametrize("role", ["train", "test", "game", "server_test"])
def test_other_data_of_the_same_shape_are_refused(role, tmp_path):
    pagefl.run(task=task(), rounds=2, out=tmp_path / "run")
    changed = task()
    getattr(changed.data, role).x[0, 0] += 1
    refused(rf"the data differ .*\({role}\)", tmp_path / "run", task=changed, rounds=3)
    moved = task()
    getattr(moved.data, role).y[0] = (getattr(moved.data, role).y[0] + 1) % CLASSES
    refused(rf"the data differ .*\({role}\)", tmp_path / "run", task=moved, rounds=3)
    assert pagefl.resume(tmp_path / "run", task=task(), rounds=3).over


def test_other_weights_that_are_not_trained_are_refused(tmp_path):
    def own(value: float) -> Task:
        frozen = nn.Linear(FEATURES, FEATURES).requires_grad_(False)
        nn.init.constant_(frozen.weight, value)
        nn.init.constant_(frozen.bias, value)
        return Task("own", nn.Sequential(frozen, nn.Linear(FEATURES, CLASSES)), data(), SETTINGS)

    pagefl.run(task=own(0.1), rounds=2, out=tmp_path / "run")
    refused("the model's fixed weights", tmp_path / "run", task=own(0.2), rounds=3)
    assert pagefl.resume(tmp_path / "run", task=own(0.1), rounds=3).over


PAGE = {"name": "page", "warm_up": 3, "rewards": "standard"}
# The run that is planned for 40 rounds would take its personal step before it goes on.
NO_STEP = {**SETTINGS, "personal": {"when": "never"}}
sharing_agents = pytest.mark.xdist_group("agents that go on")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    out = tmp_path_factory.mktemp("page") / "run"
    pagefl.run(task=Task("small", linear, data(), NO_STEP), players=PAGE, rounds=40, out=out)
    return out


@pytest.fixture(scope="module")
def straight():
    return pagefl.run(task=Task("small", linear, data(), NO_STEP), players=PAGE, rounds=60)


@sharing_agents
def test_fewer_rounds_than_were_played_are_refused(page):
    own = Task("small", linear, data(), NO_STEP)
    refused("rounds = 10: the run is already at round 40; choose at least 40", page, task=own, rounds=10)
    assert pagefl.resume(page, task=own, rounds=40).over


@sharing_agents
@pytest.mark.slow
@pytest.mark.parametrize("planned", [40, 90])
def test_agents_go_on_for_more_or_fewer_rounds_than_planned(planned, page, straight, tmp_path):
    """Their replay is as long as the plan; the bits are those of a run that was planned so from the start."""
    own, out = Task("small", linear, data(), NO_STEP), tmp_path / "run"
    if planned == 40:
        shutil.copytree(page, out)
    else:
        stop = lambda entry: os.kill(os.getpid(), signal.SIGTERM) if entry["round"] == 40 else None  # noqa: E731
        assert not pagefl.run(task=own, players=PAGE, rounds=planned, out=out, observe=stop).over
    resumed = pagefl.resume(out, task=own, rounds=60)
    assert resumed.client_rounds == straight.client_rounds
    for name, value in straight.state.items():
        assert torch.equal(value, resumed.state[name]), name


def test_a_run_from_before_a_setting_had_its_default(tmp_path):
    """Checkpoint and spec lack the optimiser; the run goes on by sgd, and by nothing else."""
    now, spec = {"lr": 0.1}, tmp_path / "spec.toml"
    for facts in ({}, {"spec": {"lr": 0.1}}):
        binding.check_settings(now, facts, spec)
        binding.check_settings({**now, "optimiser": "sgd"}, facts, spec)
        with pytest.raises(
            pagefl.UserError, match='optimiser = "deltasgd", but the checkpoint was made with'
        ):
            binding.check_settings({**now, "optimiser": "deltasgd"}, facts, spec)
