"""Sweeps: nothing runs twice, nothing stale is reused, and neither a kill nor a crash nor a full disk loses
anything.
"""

import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pagefl import UserError
from pagefl.cli import main
from pagefl.experiments import spec as specs
from pagefl.experiments import sweep
from pagefl.experiments.paper import METHODS, PAPER_TASKS, TABLE1, TABLES
from pagefl.experiments.scales import experiment
from pagefl.experiments.tasks import BUILDERS, TASKS, Small
from pagefl.reports import reproduce
from pagefl.runtime import checkpoint

SMALL = {"task": {"name": "synthetic", "clients": 3}, "epochs": 1, "rounds": 4}


def spec(**settings):
    return specs.resolve({**SMALL, **settings})


def command(*arguments: object, **options) -> subprocess.Popen:
    # A background job's children ignore Ctrl-C, and Python then never notices it.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    line = [sys.executable, "-c", f"{heard}; from pagefl.cli import main; main()", *map(str, arguments)]
    return subprocess.Popen(line, stderr=subprocess.PIPE, text=True, start_new_session=True, **options)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_name_is_the_spec_and_nothing_else():
    name = sweep.name_of(spec())
    assert name == sweep.name_of(spec(workers=2, checkpoint_seconds=0.0))
    others = [
        spec(seed=1),
        spec(lr=0.2),
        spec(algorithm="fedprox"),
        spec(players="random"),
        spec(bias="10:1"),
        spec(optimiser="deltasgd"),
    ]
    assert len({name, *map(sweep.name_of, others)}) == 7


def test_a_grid_is_every_combination():
    lists = {"algorithm": ["fedavg", "page"], "seed": [0, 1], "task.clients": [3, 4]}
    found = sweep.grid({**SMALL, "sweep": lists})
    assert len({sweep.name_of(one) for one in found}) == 8
    assert {one.task["clients"] for one in found} == {3, 4}
    assert {one.label for one in found} == {"fedavg", "page"}
    for bad in ({}, {"seed": 1}, {"seed": []}):
        with pytest.raises(UserError, match="sweep: expected a table of lists"):
            sweep.grid({**SMALL, "sweep": bad})
    with pytest.raises(UserError, match="algorithm = 'fedavgg'"):
        sweep.grid({**SMALL, "sweep": {"algorithm": ["fedavgg"]}})


@pytest.mark.slow
def test_what_is_there_is_not_run_again_and_a_crash_stops_nobody(tmp_path):
    bad = spec(lr=1e30, on_bad_upload="stop")
    wanted = [spec(), bad, spec(seed=1)]
    done = sweep.run_missing(wanted, tmp_path, jobs=2)
    assert (done.runs, done.finished, done.rounds) == (3, 2, 12)
    assert "not finite" in done.failed[sweep.name_of(bad)]
    marks = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/rounds.jsonl")}
    again = sweep.run_missing([spec(), spec(seed=1)], tmp_path, jobs=2)
    assert (again.finished, again.failed) == (2, {})
    assert all(path.stat().st_mtime_ns == mark for path, mark in marks.items())
    assert [one.spec.seed for one in sweep.finished(wanted, tmp_path)] == [0, 1]


@pytest.mark.slow
def test_a_run_that_dies_is_named_and_goes_on_next_time(tmp_path):
    wanted = [spec(rounds=3000), spec(seed=1)]
    killed = []

    def kill_the_long_one(progress):
        if not killed and sweep.rounds_done(tmp_path / sweep.name_of(wanted[0])) > 3:
            for server in children(os.getpid()):  # the runs' processes are the fork server's
                for child in children(server):
                    os.kill(child, signal.SIGKILL)
                    killed.append(child)

    done = sweep.run_missing(wanted, tmp_path, jobs=2, watch=kill_the_long_one)
    assert sweep.name_of(wanted[0]) in done.failed
    assert "its process died of SIGKILL" in done.failed[sweep.name_of(wanted[0])]
    again = sweep.run_missing(wanted, tmp_path, jobs=2)
    assert (again.finished, again.failed) == (2, {})


@pytest.mark.slow
def test_killed_at_random_and_started_again_gives_the_same_tables(tmp_path, monkeypatch):
    chance = random.Random(3)
    arguments = ("reproduce", "table4", "--scale", "smoke", "--task", "synthetic", "--jobs", 2, "--out")
    assert command(*arguments, tmp_path / "straight").wait() == 0
    for _ in range(2):
        process = command(*arguments, tmp_path / "killed")
        time.sleep(chance.uniform(0.5, 8))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert command(*arguments, tmp_path / "killed").wait() == 0

    def body(folder: str) -> str:
        text = (tmp_path / folder / "table4-smoke.md").read_text()
        return text[text.index("## ") :]

    assert body("killed") == body("straight")
    assert (tmp_path / "killed/table4-smoke.csv").read_bytes() == (
        tmp_path / "straight/table4-smoke.csv"
    ).read_bytes()
    assert (tmp_path / "killed/table4-smoke-plane.svg").exists()


@pytest.mark.slow
def test_a_full_disk_is_said_and_loses_nothing(tmp_path):
    (tmp_path / "grid.toml").write_text(
        "rounds = 400\nepochs = 1\n[task]\nname = 'synthetic'\nclients = 3\n[sweep]\nseed = [0, 1]\n"
    )

    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # as a full disk: no file grows beyond

    process = command("sweep", tmp_path / "grid.toml", "--out", tmp_path / "runs", preexec_fn=little_room)
    _, said = process.communicate()
    assert process.returncode == 1
    assert "File too large; what is written is not lost" in said
    assert "2 of 2 runs are not finished; the same command goes on with them" in said
    process = command("sweep", tmp_path / "grid.toml", "--out", tmp_path / "runs", stdout=subprocess.PIPE)
    told, _ = process.communicate()
    assert process.returncode == 0
    assert "| fedavg | " in told


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "privacy")) for name in TABLES]
)  # noise is solved for
@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
def test_every_experiment_is_data(name, scale):
    made = experiment(name, scale)
    assert all(row for block in made.blocks for row in block.rows.values())
    assert all(set(block.published) <= set(block.rows) for block in made.blocks)
    if scale == "paper":
        published = (row for block in made.blocks if block.published for row in block.rows.values())
        assert {len(row) for row in published} <= {3}  # seeds


def test_table1_is_complete():
    made = experiment("table1", "paper")
    assert [block.title for block in made.blocks] == list(PAPER_TASKS)
    assert {method for numbers in TABLE1.values() for method in numbers} == set(METHODS)
    assert len(made.blocks[1].rows) == 11
    assert made.blocks[0].published["page"] == (92.67, 96.24, 0.13, 0.33, 891, "global")
    assert experiment("fig3", "paper").blocks[0].rows["p"][0].freeze == ["eta", "alpha"]


def test_a_small_task_needs_no_size_per_client(monkeypatch):
    small = Small({"clients": 5}, {})
    monkeypatch.setitem(TASKS, "synthetic-small", TASKS["synthetic"])
    monkeypatch.setitem(TASKS, "synthetic", TASKS["synthetic"]._replace(small=small))
    monkeypatch.setitem(BUILDERS, "synthetic-small", BUILDERS["synthetic"])
    (block,) = experiment("fig2", "smoke").blocks[:1]
    assert [spec.task["name"] for spec in block.rows["page"]] == ["synthetic-small"] * 2


def test_missing_data_leave_a_block_out(monkeypatch, tmp_path):
    monkeypatch.setenv("PAGEFL_DATA", str(tmp_path))
    said: list[str] = []
    left = reproduce.available(experiment("table1", "smoke"), said.append)
    assert [block.title for block in left.blocks] == ["synthetic"]
    assert len(said) == 3
    with pytest.raises(UserError, match="fig3: none of its data are there"):
        reproduce.available(experiment("fig3", "smoke"), said.append)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["reproduce", "table9"], "reproduce table9: expected one of table1"),
        (["reproduce", "table1", "--scale", "huge"], "--scale huge: expected smoke, laptop or paper"),
        (["reproduce", "table1", "--task", "mnist"], "--task mnist: table1 has synthetic, cifar100"),
        (["reproduce", "table1", "--task", "synthetic", "--part", "3/2"], "--part 3/2: expected K/N"),
        (["compare", "nowhere"], "nowhere: there is no such directory"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["pagefl", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.slow
def test_table1_at_smoke_scale(tmp_path):
    """Every method that Synthetic has, with the paper's numbers beside ours, in every form."""
    made = command(
        "reproduce",
        "table1",
        "--scale",
        "smoke",
        "--task",
        "synthetic",
        "--out",
        tmp_path,
        stdout=subprocess.PIPE,
    )
    told, _ = made.communicate()
    assert made.returncode == 0
    text = (tmp_path / "table1-smoke.md").read_text()
    assert told.strip() == text[text.index("## ") :].strip()  # it prints what it writes
    rows, against, clients, personal = (
        [line for line in table.splitlines() if line.startswith("| ")][2:]
        for table in text.split("\n## ")[1:]
    )
    for each in (rows, against, clients, personal):
        assert [row.split(" | ")[0][2:] for row in each] == list(TABLE1["synthetic"])
    assert all(row.count(" vs ") == 2 and row.count("(seeds: 2, at least 3 needed)") == 2 for row in against)
    assert all("–" not in row for row in (*rows, *clients, *personal))
    assert rows[-1].endswith("| 2 | 92.67 ± 0.13 | 96.24 ± 0.33 |")
    # accuracies, the paper's, clients
    assert (tmp_path / "table1-smoke.tex").read_text().count(r"$\pm$") == 10 * (5 + 2 + 3 + 2)
    assert (tmp_path / "table1-smoke.csv").read_text().startswith("table,,")
    assert {path.suffix for path in tmp_path.iterdir() if path.is_file()} == {
        ".md",
        ".tex",
        ".csv",
        ".png",
        ".svg",
        ".html",
        ".jsonl",
    }


@pytest.mark.slow
def test_a_sweep_with_a_failure_still_prints_what_finished(tmp_path):
    (tmp_path / "grid.toml").write_text(
        "rounds = 2\nepochs = 1\non_bad_upload = 'stop'\n[task]\nname = 'synthetic'\nclients = "
        "3\n[sweep]\nlr = [0.1, 1e30]\n"
    )
    process = command("sweep", tmp_path / "grid.toml", "--out", tmp_path / "runs", stdout=subprocess.PIPE)
    told, said = process.communicate()
    assert process.returncode == 1
    assert "| fedavg | " in told
    assert "failed: " in said
    assert "1 of 2 runs are not finished" in said


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_sweep_that_is_stopped_does_not_end_well(number, code, tmp_path):
    """A Ctrl-C reaches the whole group, a TERM one process; either way the runs end after their round."""
    (tmp_path / "grid.toml").write_text(
        "rounds = 100000\n[task]\nname = 'synthetic'\nclients = 3\n[sweep]\nseed = [0, 1]\n"
    )
    process = command("sweep", tmp_path / "grid.toml", "--jobs", 2, "--out", tmp_path / "runs")
    while len([path for path in tmp_path.glob("runs/*/rounds.jsonl") if path.stat().st_size]) < 2:
        time.sleep(0.1)
        assert process.poll() is None
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    _, said = process.communicate(timeout=1200)
    assert process.returncode == code, said
    assert "Traceback" not in said
    for folder in (tmp_path / "runs").iterdir():
        facts, rounds = (
            checkpoint.read_facts(folder / "checkpoint"),
            (folder / "rounds.jsonl").read_bytes().splitlines(),
        )
        assert facts["round"] == len(rounds)
