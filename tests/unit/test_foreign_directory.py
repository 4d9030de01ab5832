"""A run directory that somebody sent: no command writes outside of it, waits for ever, or lets it drive the
terminal.
"""

import os
import shutil
from pathlib import Path

import pytest

import pagefl
from pagefl import UserError, api
from pagefl.cli import main
from pagefl.deploy import local
from pagefl.experiments import spec as specs

ESCAPES = "\x1b]0;owned\x07\x1b[2J"
COMMANDS = {
    "resume": lambda run: ["resume", str(run), "--rounds", "3"],
    "report": lambda run: ["report", str(run), "--out", str(run.parent / "page.html")],
    "compare": lambda run: ["compare", str(run)],
    "bias": lambda run: ["bias", str(run), "2:1"],
    "verify": lambda run: ["verify", str(run), "--horizon", "1", "--clients", "1", "--random", "0"],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("made") / "run"
    pagefl.run(
        task="synthetic", players="page", clients=2, rounds=2, epochs=1, workers=1, stages_every=1, out=path
    )
    return path


@pytest.fixture
def foreign(made, tmp_path):
    shutil.copytree(made, tmp_path / "run")
    (tmp_path / "precious").write_text("precious")
    return tmp_path / "run"


def command(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["pagefl", *arguments])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


NAMES = [
    *(
        ".lock",
        "spec.toml",
        "spec.toml.aside",
        "rounds.jsonl",
        "clients.jsonl",
        "checkpoint",
        "checkpoint.aside",
    ),
    *(
        "checkpoint.previous",
        "bias.request",
        "bias.request.aside",
        "bias.jsonl",
        "report.html",
        "report.html.aside",
    ),
    *(
        "certificate.json",
        "certificate.png",
        "stages",
        "stages/000001",
        "stages/000001/checkpoint",
        "stages/000002/checkpoint.aside",
    ),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("do", COMMANDS)
def test_links_are_refused_and_nothing_is_written(name, do, foreign, monkeypatch, capsys):
    link = foreign / name
    target = foreign.parent / "precious"
    if link.is_dir():
        target = shutil.move(link, foreign.parent / "elsewhere")
    elif link.exists():
        link.unlink()
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(target)
    before = contents(foreign.parent)
    assert command(monkeypatch, *COMMANDS[do](foreign)) == 2
    said = capsys.readouterr().err
    assert f"{link} is a symbolic link; a run directory holds its own files" in said
    assert said.count("\n") == 1
    assert contents(foreign.parent) == before


@pytest.mark.parametrize("name", [".lock", "spec.toml", "rounds.jsonl", "checkpoint", "bias.request"])
@pytest.mark.parametrize("do", COMMANDS)
def test_pipes_are_refused_and_nobody_waits(name, do, foreign, monkeypatch, capsys):
    (foreign / name).unlink(missing_ok=True)
    os.mkfifo(foreign / name)
    assert command(monkeypatch, *COMMANDS[do](foreign)) == 2
    assert f"{foreign / name} is a pipe" in capsys.readouterr().err


def test_a_deployment_into_a_directory_with_links_does_not_begin(foreign):
    (foreign / "deploy.log").symlink_to("../precious")
    with (
        pytest.raises(UserError, match=r"deploy.log is a symbolic link"),
        local.started(specs.resolve({}), foreign),
    ):
        pytest.fail("it began")
    assert not (foreign / "deploy").exists()


def test_a_run_directory_that_is_itself_a_link_is_fine(foreign, monkeypatch):
    (foreign.parent / "link").symlink_to("run")
    assert (
        command(
            monkeypatch, "report", str(foreign.parent / "link"), "--out", str(foreign.parent / "page.html")
        )
        == 0
    )


@pytest.mark.parametrize(
    "setting", ["device", "reward", "task.name", "algorithm.name", "players.lr_min", ESCAPES, f"{ESCAPES}.a"]
)
@pytest.mark.parametrize("do", ["resume", "report", "compare", "verify"])
def test_escape_sequences_of_a_spec_do_not_reach_the_terminal(setting, do, foreign, monkeypatch, capsys):
    raw = specs.read(foreign / "spec.toml")
    table, _, own = setting.rpartition(".")
    (raw.setdefault(table, {}) if table else raw)[own] = f"{ESCAPES}\ntwo lines"
    (foreign / "spec.toml").write_text(specs.dump(raw))
    command(monkeypatch, *COMMANDS[do](foreign))
    said = "".join(capsys.readouterr())
    assert not {"\x1b", "\x07"} & set(said)


HOSTILE = [
    b'"<meta http-equiv=refresh>"',
    b"7",
    b"null",
    b"[[]]",
    b"{}",
    b'{"round": "<b>"}',
    b'{"round": 1}',
    b'{"round": 1, "participants": "<b>", "seconds": {"a": 1}, "global_accuracy": [1], "agents": 7, '
    b'"payoffs": []}',
    b'{"round": 1, "seconds": 1e999, "global_loss": -1e999, "local_accuracy": NaN}',
]


@pytest.mark.parametrize("line", HOSTILE, ids=lambda line: str(line[:30]))
@pytest.mark.parametrize("name", ["rounds.jsonl", "clients.jsonl"])
def test_a_report_on_strange_records_is_safe_or_one_sentence(line, name, foreign):
    (foreign / name).write_bytes(line + b"\n")
    for left in ("checkpoint", "checkpoint.previous"):
        (foreign / left).unlink(missing_ok=True)
    page, refused = foreign.parent / "page.html", ""
    try:
        api.report([foreign], page)
    except UserError as error:
        refused = str(error)
    assert bool(refused) != page.exists()
    assert "\n" not in refused
    shown = page.read_text(encoding="utf-8") if page.exists() else ""
    assert "<b><b>" not in shown
    assert "http-equiv=refresh" not in shown
