"""Records and checkpoints: nothing a kill, a full disk or an editor does goes unnoticed or loses a round."""

import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors import SafetensorError

import pagefl
from pagefl.runtime import checkpoint
from pagefl.runtime.directory import RunDirectory

OPTIONS = {"task": {"name": "synthetic", "clients": 6}, "rounds": 40, "epochs": 2}
SPEC = [
    "--task",
    "synthetic",
    "--clients",
    "6",
    "--rounds",
    "40",
    "--epochs",
    "2",
    "--set",
    "checkpoint_seconds=0",
]


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "pagefl", *map(str, words)]


def rounds_of(directory) -> list[dict]:
    entries = [json.loads(line) for line in (directory / "rounds.jsonl").read_text().splitlines()]
    return [{name: value for name, value in entry.items() if name != "seconds"} for entry in entries]


def assert_same_run(one, other) -> None:
    assert rounds_of(one) == rounds_of(other)
    assert (one / "clients.jsonl").read_bytes() == (other / "clients.jsonl").read_bytes()
    tensors, others = (checkpoint.read(directory / "checkpoint")[0] for directory in (one, other))
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensors[name], others[name]) for name in tensors)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    out = tmp_path_factory.mktemp("straight") / "run"
    pagefl.run(**OPTIONS, out=out)
    return out


@pytest.mark.slow
def test_killed_at_any_instant(straight, tmp_path):
    """kill -9, again and again, workers and all; then the files are those of the run that was left alone."""
    out, chance, killed = tmp_path / "run", random.Random(3), 0
    context = multiprocessing.get_context("fork")  # a new interpreter would take longer to start than to run

    def lines() -> int:
        return (out / "rounds.jsonl").read_bytes().count(b"\n") if (out / "rounds.jsonl").exists() else 0

    def go_on() -> None:
        os.setsid()
        if (out / "spec.toml").exists():
            pagefl.resume(out)
        else:
            pagefl.run(**OPTIONS, workers=2, checkpoint_seconds=0.0, out=out)

    for _ in range(12):
        process, before, further = context.Process(target=go_on), lines(), chance.randrange(4)
        process.start()
        while (
            process.is_alive() and lines() <= before + further
        ):  # let it come a little further than last time
            time.sleep(0.002)
        time.sleep(chance.random() * 0.01)
        process.kill()
        process.join()
        killed += process.exitcode == -signal.SIGKILL
    assert killed > 4
    subprocess.run(command("resume", out), check=True, capture_output=True)
    assert_same_run(straight, out)


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "edit"])
def test_damaged_checkpoint_is_seen_and_the_one_before_used(straight, tmp_path, damage):
    out = tmp_path / "run"
    pagefl.run(task={"name": "synthetic", "clients": 6}, rounds=20, epochs=2, out=out, checkpoint_seconds=0.0)
    path = out / "checkpoint"
    content = bytearray(path.read_bytes())
    if damage == "truncate":
        content = content[: len(content) // 2]
    elif damage == "flip":
        content[-10] ^= 1
    elif damage == "empty":
        content = bytearray()
    else:
        content = bytearray(bytes(content).replace(b'\\"round\\": 20', b'\\"round\\": 10'))
        assert bytes(content) != path.read_bytes()
    path.write_bytes(content)
    said: list[str] = []
    pagefl.resume(out, rounds=40, say=said.append)
    assert any("checkpoint" in line and "one before" in line for line in said)
    assert_same_run(straight, out)


@pytest.mark.parametrize("step", ["save_file", "safetensors", "fsync", "link", "replace", "second replace"])
def test_a_checkpoint_is_there_whatever_step_fails(tmp_path, monkeypatch, step):
    claims = {"rounds.jsonl": {"size": 0}}
    for round in (1, 2):
        checkpoint.save(
            tmp_path, {"row": torch.full((3,), float(round))}, {"round": round, "records": claims}
        )
    calls = []

    def fail(*_: object, **__: object) -> None:
        calls.append(1)
        if step != "second replace" or len(calls) == 2:
            raise (
                SafetensorError("No space")
                if step == "safetensors"
                else OSError(28, "No space left on device")
            )

    if step in ("save_file", "safetensors"):
        monkeypatch.setattr(checkpoint, "save_file", fail)
    elif "replace" in step:
        replace = checkpoint.Path.replace
        monkeypatch.setattr(checkpoint.Path, "replace", lambda *a: (fail(), replace(*a))[1])
    else:
        monkeypatch.setattr(os, step, fail)
    with pytest.raises((OSError, pagefl.UserError), match="No space"):
        checkpoint.save(tmp_path, {"row": torch.full((3,), 3.0)}, {"round": 3, "records": claims})
    monkeypatch.undo()
    said: list[str] = []
    found = RunDirectory(tmp_path).last(said.append)
    assert found is not None
    assert found.facts["round"] == 2
    assert not said


@pytest.mark.slow
def test_a_second_run_into_one_directory_is_refused(tmp_path):
    out = tmp_path / "run"
    slow = [word if word != "40" else "100000" for word in SPEC]
    first = subprocess.Popen(command("run", *slow, "--out", out), stderr=subprocess.DEVNULL)
    try:
        while not (out / "checkpoint").exists():
            time.sleep(0.05)
        for act, words in (
            (lambda: pagefl.run(**OPTIONS, out=out), "not empty"),
            (lambda: pagefl.resume(out), "in use by"),
        ):
            with pytest.raises(pagefl.UserError, match=words):
                act()
    finally:
        first.terminate()
        assert first.wait() == 128 + signal.SIGTERM  # a script must not take it for the end
    # TERM ends a run after its round
    assert checkpoint.read(out / "checkpoint")[1]["round"] == len(rounds_of(out))


def test_a_run_is_not_overwritten(straight):
    with pytest.raises(pagefl.UserError, match="not empty"):
        pagefl.run(task={"name": "synthetic", "clients": 6}, rounds=1, out=straight)


def test_a_full_disk_ends_in_a_sentence_and_loses_nothing(tmp_path, monkeypatch):
    out = tmp_path / "run"
    real = checkpoint.save_file

    def full_after_five(tensors, path, metadata):
        if json.loads(metadata["facts"])["facts"]["round"] > 5:
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device", str(path))
        real(tensors, path, metadata)

    monkeypatch.setattr(checkpoint, "save_file", full_after_five)
    with pytest.raises(OSError, match="No space"):
        pagefl.run(
            task={"name": "synthetic", "clients": 6}, rounds=9, epochs=2, out=out, checkpoint_seconds=0.0
        )
    monkeypatch.undo()
    assert pagefl.resume(out).rounds[-1]["round"] == 9


@pytest.mark.slow
def test_no_room_for_a_checkpoint_is_one_sentence(tmp_path):
    """As a full disk: no file grows beyond.

    The checkpoint's own writer has its own kind of error for that.
    """
    out = tmp_path / "run"

    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    done = subprocess.run(
        command("run", *SPEC, "--out", out), capture_output=True, text=True, preexec_fn=little_room
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"pagefl: {out / 'checkpoint'}: it cannot be written")
    assert "Traceback" not in done.stderr
    assert not (out / "checkpoint.aside").exists()
    assert pagefl.resume(out, rounds=2).over


def test_load_gives_what_the_run_gave(tmp_path):
    made = pagefl.run(task={"name": "synthetic", "clients": 6}, rounds=3, epochs=2, out=tmp_path / "run")
    loaded = pagefl.load(tmp_path / "run")
    assert loaded.history.equals(made.history)
    assert loaded.clients.equals(made.clients)
    assert torch.equal(loaded.model.weight, made.model.weight)
    assert torch.equal(loaded.personal(4).weight, made.personal(4).weight)
    assert not torch.equal(loaded.personal(4).weight, loaded.model.weight)


@pytest.mark.slow
def test_ctrl_c_ends_the_round_and_keeps_it(tmp_path):
    """To the whole process group, as a terminal sends it: workers too."""
    out = tmp_path / "run"
    endless = [word if word != "40" else "100000" for word in SPEC]
    process = subprocess.Popen(
        command("run", *endless, "--workers", 2, "--out", out),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (out / "checkpoint").exists():
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=1200)
    assert process.returncode == 128 + signal.SIGINT, errors
    assert f"pagefl resume {out}" in errors
    assert "Traceback" not in errors
    assert checkpoint.read(out / "checkpoint")[1]["round"] == len(rounds_of(out))
