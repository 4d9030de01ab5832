"""What a checkpoint vouches for: damaged records or checkpoints give the right result, or one sentence and
every byte stays.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from federations import task
from safetensors.torch import save_file

import pagefl
from pagefl import api
from pagefl.cli import main
from pagefl.runtime import checkpoint, record

OPTIONS = {"algorithm": "scaffold", "rounds": 6, "checkpoint_seconds": 0.0}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    pagefl.run(task={"name": "synthetic", "clients": 3}, epochs=1, workers=1, **OPTIONS, out=out)
    return out


@pytest.fixture
def out(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def readers(out: Path):
    yield lambda: pagefl.resume(out)
    yield lambda: pagefl.load(out)
    yield lambda: api.report([out], out.parent / "page.html")
    yield lambda: api.verify(out)
    yield lambda: record.read(out)  # as `compare` and `reproduce` do


def cut(content: bytes) -> bytes:
    return b"".join(content.splitlines(keepends=True)[:-2])


def one_digit(content: bytes) -> bytes:
    place = content.index(b'"global_accuracy": 0.') + len('"global_accuracy": 0.')
    return content[:place] + (b"9" if content[place : place + 1] != b"9" else b"1") + content[place + 1 :]


def swapped(content: bytes) -> bytes:
    first, second, *rest = content.splitlines(keepends=True)
    return b"".join([second, first, *rest])


DAMAGES = {
    "cut": (cut, "bytes, but the checkpoint counts"),
    "emptied": (lambda content: b"", "has 0 bytes"),
    "deleted": (None, "is missing"),
    "a digit": (one_digit, "its checksum differs"),
    "swapped": (swapped, "its checksum differs"),
    "binary": (lambda content: bytes(range(256)) * 100, "its checksum differs"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_records_are_refused_and_every_byte_stays(out, damage):
    """Both checkpoints are whole; the older one could be gone on from, and would throw lines away."""
    how, sentence = DAMAGES[damage]
    path = out / "rounds.jsonl"
    path.unlink() if how is None else path.write_bytes(how(path.read_bytes()))
    before = contents(out)
    for act in readers(out):
        with pytest.raises(pagefl.UserError) as refusal:
            act()
        assert sentence in str(refusal.value)
        assert str(path) in str(refusal.value)
        assert "\n" not in str(refusal.value)
        assert contents(out) == before


@pytest.mark.parametrize("previous", ["damaged", "missing"])
def test_two_damaged_checkpoints_are_refused_and_every_byte_stays(out, previous):
    (out / "checkpoint").write_bytes((out / "checkpoint").read_bytes()[:-1])
    (out / "checkpoint.previous").unlink()
    if previous == "damaged":
        (out / "checkpoint.previous").write_bytes(b"half")
    before = contents(out)
    with pytest.raises(
        pagefl.UserError, match=rf"checkpoint is damaged.*checkpoint.previous is {previous}.*--restart"
    ):
        pagefl.resume(out)
    assert contents(out) == before


def test_records_without_a_checkpoint_are_the_rest_of_a_run(out):
    """A run writes its first checkpoint before its first record, so somebody has deleted it."""
    (out / "checkpoint").unlink()
    (out / "checkpoint.previous").unlink()
    before = contents(out)
    for act in readers(out):
        with pytest.raises(pagefl.UserError, match="checkpoint is missing"):
            act()
    assert contents(out) == before


def test_a_run_that_was_killed_before_its_first_round_begins_again(tmp_path):
    out = tmp_path / "run"
    straight = pagefl.run(task=task(), rounds=2, out=out)
    for path in out.iterdir():
        if path.name != "spec.toml":
            path.unlink()
    (out / "rounds.jsonl").touch()
    again = pagefl.resume(out, task=task())
    assert torch.equal(again.state["server.model"], straight.state["server.model"])


def test_what_follows_the_vouched_lines_is_written_again(tmp_path):
    """As after a kill: whole lines, and a torn one, that no checkpoint vouches for."""
    straight = pagefl.run(task=task(), rounds=4, out=tmp_path / "straight")
    out = tmp_path / "run"
    pagefl.run(task=task(), rounds=4, out=out, observe=stop_after(2))
    with (out / "rounds.jsonl").open("ab") as file:
        file.write(
            (tmp_path / "straight" / "rounds.jsonl").read_bytes().splitlines(keepends=True)[2]
            + b'{"round": 4, "gl'
        )
    assert len(pagefl.load(out, task=task()).rounds) == 2
    resumed = pagefl.resume(out, task=task())
    assert resumed.client_rounds == straight.client_rounds
    assert [entry["round"] for entry in record.read(out)[0]] == [1, 2, 3, 4]


def stop_after(round):
    return lambda entry: os.kill(os.getpid(), signal.SIGTERM) if entry["round"] == round else None


def test_lines_added_to_a_finished_run(out):
    with (out / "rounds.jsonl").open("ab") as file:
        file.write(b'{"round": 7}\n')
    before = contents(out)
    assert len(pagefl.load(out).rounds) == 6  # they are nobody's word
    with pytest.raises(pagefl.UserError, match=r"rounds.jsonl is longer than when the run finished"):
        pagefl.resume(out)
    assert contents(out) == before


def test_the_damaged_checkpoint_is_kept_and_never_becomes_the_one_before(out, finished):
    damaged = b"not a checkpoint"
    (out / "checkpoint").write_bytes(damaged)
    said: list[str] = []
    resumed = pagefl.resume(out, say=said.append)
    assert any("using the one before it, of round 5" in line for line in said)
    assert (out / "checkpoint.damaged").read_bytes() == damaged
    assert checkpoint.read(out / "checkpoint.previous")[1]["round"] == 5
    assert torch.equal(resumed.state["kept.control"], pagefl.load(finished).state["kept.control"])


def test_restart_puts_everything_aside_and_begins_again(out, finished, monkeypatch, capsys):
    (out / "rounds.jsonl").write_bytes(cut((out / "rounds.jsonl").read_bytes()))
    before = contents(out)
    monkeypatch.setattr("sys.argv", ["pagefl", "resume", str(out), "--restart"])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    assert f"what was there is now in {out / 'old-1'}" in capsys.readouterr().err
    moved = contents(out / "old-1")
    assert {name: content for name, content in before.items() if name != ".lock"} == moved
    assert (out / "clients.jsonl").read_bytes() == (finished / "clients.jsonl").read_bytes()
    assert pagefl.resume(out, restart=True).over
    assert (out / "old-2" / "rounds.jsonl").exists()


def test_resume_leaves_a_finished_run_alone(out):
    before = {name: content for name, content in contents(out).items() if name != "report.html"}
    assert pagefl.resume(out).over
    assert before.items() <= contents(out).items()


def test_a_run_directory_of_the_first_version_is_read_and_not_gone_on_with(out, finished):
    """It had sizes without hashes, one checksum for all, and bound its checkpoint to nothing."""
    for name in ("checkpoint", "checkpoint.previous"):
        tensors, facts = checkpoint.read(out / name)
        sizes = {file: claim["size"] for file, claim in facts["records"].items()}
        old = {**{name: facts[name] for name in ("round", "payoffs", "equilibrium")}, "sizes": sizes}
        tensors = {key.replace("known.", "scores."): value for key, value in tensors.items()}
        text = json.dumps({"facts": old, "same": {}})
        save_file(tensors, out / name, metadata={"facts": text, "digest": checkpoint.digest(tensors, text)})
    assert pagefl.load(out).over
    assert pagefl.load(out).rounds == pagefl.load(finished).rounds
    lines = (out / "rounds.jsonl").read_bytes()
    (out / "rounds.jsonl").write_bytes(b"\n" * len(lines))
    with pytest.raises(pagefl.UserError, match="line 1 is not a round"):
        pagefl.load(out)
    (out / "rounds.jsonl").write_bytes(lines)
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    with pytest.raises(
        pagefl.UserError, match=r"made by pagefl 0\.1\.0, and this version cannot go on from it"
    ):
        pagefl.resume(out, rounds=7)
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before


def test_a_stage_is_not_the_runs_checkpoint(tmp_path):
    out = tmp_path / "run"
    pagefl.run(
        task={"name": "synthetic", "clients": 3}, epochs=1, rounds=4, stages_every=2, workers=1, out=out
    )
    shutil.copy(out / "stages" / "000002" / "checkpoint", out / "checkpoint")
    before = contents(out)
    for act in readers(out):
        with pytest.raises(pagefl.UserError, match="its checkpoint is a stage's"):
            act()
    assert contents(out) == before


@pytest.mark.slow
def test_damage_at_random():
    """The whole number: python benchmarks/damage.py --records 500 --checkpoints 500."""
    program = Path(__file__).parents[2] / "benchmarks" / "damage.py"
    done = subprocess.run(
        [sys.executable, program, "--records", "10", "--checkpoints", "10"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 tracebacks, 0 silently wrong, 0 lost bytes" in done.stdout
