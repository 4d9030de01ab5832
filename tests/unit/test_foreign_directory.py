"""A run directory that somebody sent: no command writes outside of it, waits for ever, or lets it drive the
terminal.
"""

import json
import math
import os
import shutil
from pathlib import Path

import pytest

import pagefl
from pagefl import UserError, api
from pagefl.cli import main
from pagefl.deploy import local
from pagefl.experiments import spec as specs
from pagefl.experiments import sweep
from pagefl.runtime import checkpoint, record, vouched
from pagefl.runtime.directory import RunDirectory

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
        local.started(specs.resolve({"task": {"clients": 4}}), foreign),
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


@pytest.mark.parametrize("do", COMMANDS)
def test_tables_in_tables_in_tables_are_one_sentence(do, foreign, monkeypatch, capsys):
    with (foreign / "spec.toml").open("a") as file:
        file.write(f"\n[task{3000 * '.a'}]\nb = 1\n")
    assert command(monkeypatch, *COMMANDS[do](foreign)) == 2
    assert "nested more than" in capsys.readouterr().err.splitlines()[-1]


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


# --- records and checkpoints with sound checksums that somebody has made up
# ------------------------------------------------


def forge(
    run: Path, entry: str = "", value: object = None, *, name: str = "rounds.jsonl", **facts: object
) -> None:
    """Change one entry of the last record, and facts of the checkpoint, which vouches for them all."""
    tensors, known = checkpoint.read(run / "checkpoint")
    if entry:
        *before, changed = (run / name).read_text().splitlines(keepends=True)
        line = json.loads(changed)
        table, _, own = entry.rpartition(".")
        (line[table] if table else line)[own] = value
        (run / name).write_text("".join([*before, json.dumps(line) + "\n"]))
        known["records"][name] = vouched.claim_of((run / name).read_bytes())
    checkpoint.save(run, tensors, {**known, **facts})
    (run / "checkpoint.previous").unlink()


WRONG = ["0.9", [0.9], {"a": 1}, True, 10**400, math.inf, math.nan]
ENTRIES = [
    "round",
    "seconds",
    "participants",
    "global_accuracy",
    "local_std",
    "reward_server",
    "payoffs.server",
    "agents",
]


@pytest.mark.parametrize("entry", ENTRIES)
def test_what_is_not_a_number_is_refused(entry, foreign):
    for value in (*WRONG, {"server_critic": "0.9"}):
        if (entry, value) != ("agents", {"a": 1}):
            forge(foreign, entry, value)
            with pytest.raises(
                UserError, match=f"rounds.jsonl: line 2 is not a round's record: {entry}.* is not as a run"
            ):
                record.read(foreign)


@pytest.mark.parametrize("entry", ["global_accuracy", "payoffs.server"])
@pytest.mark.parametrize("do", ["resume", "report", "compare", "verify"])
def test_what_is_not_a_number_is_one_sentence(do, entry, foreign, monkeypatch, capsys):
    forge(foreign, entry, "0.9")
    before = contents(foreign.parent)
    assert command(monkeypatch, *COMMANDS[do](foreign)) == 2
    said = capsys.readouterr().err.splitlines()
    assert f"rounds.jsonl: line 2 is not a round's record: {entry}" in said[-1]
    assert sum(line.startswith("pagefl: ") for line in said) == 1
    after = contents(foreign.parent)
    assert {path: after[path] for path in before} == before


@pytest.mark.parametrize("value", [None, -1e300])
@pytest.mark.parametrize("do", ["report", "compare", "verify"])
def test_implausible_and_missing_numbers_are_left_out(do, value, foreign, monkeypatch, capsys):
    for entry in (
        "seconds",
        "participants",
        "global_accuracy",
        "local_std",
        "reward_server",
        "payoffs.server",
    ):
        forge(foreign, entry, value)
    assert command(monkeypatch, *COMMANDS[do](foreign), *(["--json"] if do != "report" else [])) == 0
    if do != "report":
        json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def test_records_of_clients_are_lists_of_their_numbers(foreign):
    for value in (None, 0.5, [], [0.5], ["0.5", 0.5], [[0.5], [0.5]], [math.inf, 1]):
        forge(foreign, "local_accuracy", value, name="clients.jsonl")
        with pytest.raises(
            UserError,
            match=r"clients.jsonl: line 2 is not a round's record: [a-z_]+ is not as a run writes it",
        ):
            pagefl.load(foreign)


MADE_UP = [
    ({"records": {"../precious": vouched.claim_of(b"precious")}}, r"facts.records.../precious"),
    ({"records": {"/etc/passwd": {"size": 1}}}, r"facts.records./etc/passwd"),
    ({"records": {"spec.toml": {"size": 1}}}, "facts.records.spec.toml"),
    ({"records": {"rounds.jsonl": {"size": -1}}}, "facts.records.rounds.jsonl.size"),
    ({"records": {"rounds.jsonl": {"size": "9"}}}, "facts.records.rounds.jsonl.size"),
    ({"records": {"rounds.jsonl": {}}}, "facts.records.rounds.jsonl.size"),
    ({"records": ["rounds.jsonl"]}, "facts.records"),
    ({"records": {"rounds.jsonl": {"size": 10**17}}}, "bytes, but the checkpoint counts 100000000000000000"),
    ({"sizes": {"../precious": 8}}, "facts.sizes.../precious"),
    ({"round": "2"}, "facts.round"),
    ({"round": 10**400}, "facts.round"),
    ({"round": None}, "facts.round"),
    ({"payoffs": [1, 2]}, "facts.payoffs"),
    ({"payoffs": {"server": "1", "clients": 2}}, "facts.payoffs.server"),
    ({"equilibrium": "2"}, "facts.equilibrium"),
    ({"over": "no"}, "facts.over"),
    ({"spec": 7}, "facts.spec"),
    ({"data": {"train": 7}}, "facts.data.train"),
]


@pytest.mark.parametrize(("facts", "words"), MADE_UP, ids=str)
def test_made_up_facts_are_refused(facts, words, foreign):
    forge(foreign, **facts)
    for read in (record.read, pagefl.load, lambda run: RunDirectory(run).last(print)):
        with pytest.raises(UserError, match=words):
            read(foreign)


@pytest.mark.parametrize(("facts", "words"), [MADE_UP[0], MADE_UP[9]], ids=str)
@pytest.mark.parametrize("do", ["resume", "report", "compare", "verify"])
def test_a_checkpoint_of_made_up_facts_is_one_sentence(do, facts, words, foreign, monkeypatch, capsys):
    forge(foreign, **facts)
    before = contents(foreign.parent)
    assert command(monkeypatch, *COMMANDS[do](foreign)) == 2
    said = capsys.readouterr().err.splitlines()
    assert words in said[-1]
    assert sum(line.startswith("pagefl: ") for line in said) == 1
    assert contents(foreign.parent) == before


@pytest.mark.parametrize(
    "line",
    [
        b'{"round": "7"}',
        b'{"round": [7]}',
        b'{"round": 1e999}',
        b'{"round": 1%s}' % (b"0" * 400),
        b"7",
        b"[" * 10**4,
    ],
)
def test_the_last_round_of_strange_records_is_0(line, tmp_path):
    (tmp_path / "rounds.jsonl").write_bytes(line + b"\n")
    assert sweep.rounds_done(tmp_path) == 0


def test_the_last_round_of_a_pipe_is_0(tmp_path):
    os.mkfifo(tmp_path / "rounds.jsonl")
    assert sweep.rounds_done(tmp_path) == 0


def test_a_sweeps_run_that_is_marked_as_finished_without_rounds_is_one_sentence(foreign):
    spec = specs.resolve({"rounds": 2})
    folder = foreign.rename(foreign.parent / sweep.name_of(spec))
    (folder / "rounds.jsonl").write_bytes(b"")
    forge(folder, records={"rounds.jsonl": vouched.claim_of(b"")})
    (folder / sweep.FINISHED).touch()
    with pytest.raises(UserError, match="is marked as finished but has no rounds"):
        sweep.finished([spec], foreign.parent)
