"""What the console reads: only whole lines, thinned, from the run's own files; and who writes a run."""

import asyncio
import fcntl
import json
import math
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pagefl.console import clients, desk, series
from pagefl.console.actions import Actions
from pagefl.console.clients import ClientRounds
from pagefl.console.lines import Samples, Tail
from pagefl.console.runs import NoSuchRun, Watch, find, place
from pagefl.console.series import Series
from pagefl.core.errors import UserError
from pagefl.reports import palette
from pagefl.runtime import holder

SPEC = (
    'rounds = 100\nseed = 3\n[task]\nname = "synthetic"\n[algorithm]\nname = "a"\n[players]\nname = "fixed"\n'
)


def round_of(number: int, **changed: Any) -> dict[str, Any]:
    return {"round": number, "global_accuracy": number / 1e5, "seconds": 0.1, "bias": "1:1"} | changed


def write(path: Path, *records: dict[str, Any], mode: str = "a") -> None:
    with path.open(mode) as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def run_directory(path: Path, rounds: int = 3) -> Path:
    path.mkdir(parents=True)
    (path / "spec.toml").write_text(SPEC)
    write(path / "rounds.jsonl", *(round_of(number) for number in range(1, rounds + 1)))
    return path


def test_only_whole_lines_are_read(tmp_path):
    path = tmp_path / "rounds.jsonl"
    tail = Tail(path)
    assert tail.new() == (False, [])
    path.write_bytes(b"one\ntw")
    assert tail.new() == (False, [b"one"])
    with path.open("ab") as file:
        file.write(b"o\n")
    assert tail.new() == (False, [b"two"])
    path.write_bytes(b"1\n")  # a resume has cut the file
    assert tail.new() == (True, [b"1"])
    path.unlink()
    (tmp_path / "other").write_bytes(b"of another file\nand longer\n")
    (tmp_path / "other").rename(path)  # a restart has put the old file aside
    assert tail.new()[1] == [b"of another file", b"and longer"]


@pytest.mark.parametrize("count", [1, 2, 39, 40, 41, 1000, 5000])
def test_samples_are_spread_over_the_file_and_include_its_ends(tmp_path, count):
    path = tmp_path / "lines"
    path.write_text(
        "".join(f"{number} {'x' * (number * 37 % 500)}\n" for number in range(count)) + "half a li"
    )
    samples = Samples(path, 40, lambda line: int(line.split()[0]))
    found = samples.look()
    assert found[0] == 0
    assert found[-1] == count - 1
    assert found == sorted(set(found))
    assert len(found) <= 41
    gaps = [after - before for before, after in pairwise(found)]
    assert max(gaps, default=1) <= max(8, count / 8)  # lines differ in length
    assert samples.look() == found


def test_samples_follow_a_file_that_grows_and_read_few_lines_twice(tmp_path):
    path, read = tmp_path / "lines", []

    def parse(line: bytes) -> int:
        read.append(line)
        return int(line.split()[0])

    samples = Samples(path, 40, parse)
    for number in range(800):
        with path.open("a") as file:
            file.write(f"{number} {'x' * 100}\n")
        found = samples.look()
        assert (found[0], found[-1]) == (0, number)
        assert len(found) <= 41
    assert len(read) < 800 + 300  # the last line each time, and some again


def test_a_series_keeps_ends_extremes_and_marks_however_long_it_is(tmp_path):
    path = run_directory(tmp_path / "run", 0)
    follow, count = Series(path), 10_000
    ratio = {number: "10:1" if 3000 <= number < 7001 else "1:1" for number in range(1, count + 1)}
    for start in range(1, count + 1, 1000):
        write(
            path / "rounds.jsonl",
            *(
                round_of(number, bias=ratio[number], quarantined=5 if number == 4321 else 0)
                for number in range(start, start + 1000)
            ),
        )
        follow.look()
    columns = follow.columns()
    assert len(columns["round"]) <= series.MOST
    assert columns["round"][-1] == count
    assert columns["global_accuracy"][-1] == count / 1e5
    assert max(columns["quarantined"]) == 5  # one round in ten thousand, and yet it is seen
    assert follow.marks == [(3000, "10:1"), (7001, "1:1")]
    assert follow.seconds == pytest.approx(count * 0.1)
    again = Series(path)  # a console that is started late
    again.look()
    assert again.columns() == columns


def test_a_page_is_told_the_same_curves_bit_by_bit_as_at_once(tmp_path):
    """An oracle of the events: what a page puts together is what a new page is told at once."""
    from pagefl.console.live import Live

    path, live = run_directory(tmp_path / "run", 0), Live(tmp_path, Actions(tmp_path))

    async def follow() -> dict[str, list[float | None]]:
        page: dict[str, list[float | None]] = {}
        look, generation = live.run_changes(path, "run"), 0
        for number in range(1, 2000):
            write(path / "rounds.jsonl", round_of(number, reward_server=0.5 if number > 100 else None))
            if number % 13 and number != 1999:
                continue
            live.of_run(path, "run").looked = -math.inf
            told = await look()
            kept = told["first"] if told["generation"] == generation else 0
            names, new = {*told["columns"], *(page if kept else ())}, told["points"] - kept
            page = {
                name: (page.get(name) or [None] * kept)[:kept] + told["columns"].get(name, [None] * new)
                for name in names
            }
            generation = told["generation"]
        assert await look() is None
        return page

    assert asyncio.run(follow()) == live.of_run(path, "run").since(0, 0)["columns"]


@pytest.mark.parametrize(
    "line",
    ["not json", "[1]", '{"round": "x"}', "[" * 100_000, '{"round": 1e999}', "{}"],
)
def test_records_that_no_run_writes_end_in_a_sentence(tmp_path, line):
    path = run_directory(tmp_path / "run")
    with (path / "rounds.jsonl").open("a") as file:
        file.write(f"{line}\n")
    follow = Series(path)
    follow.look()
    assert len(follow.points) == 3
    assert follow.problem
    assert "rounds.jsonl" in follow.problem


def test_strange_values_are_no_numbers(tmp_path):
    path = run_directory(tmp_path / "run", 0)
    write(
        path / "rounds.jsonl",
        round_of(
            1, global_accuracy="<script>", local_accuracy=7, seconds=True, bias="<b>", global_loss=1e300
        ),
    )
    follow = Series(path)
    follow.look()
    assert follow.columns() == {"round": [1.0]}
    assert (follow.bias, follow.marks) == ("", [])


def test_heat_maps_show_some_of_many_clients_and_rounds(tmp_path):
    path = run_directory(tmp_path / "run")

    def entry(number: int) -> dict[str, Any]:
        lr = [None if number % 2 else client / 1000 for client in range(1000)]
        return {"round": number, "trained": [True] * 1000, "local_accuracy": [0.5] * 1000, "lr": lr}

    write(path / "clients.jsonl", *map(entry, range(1, 401)))
    heat = ClientRounds(path)
    assert heat.look() == 400
    shown = heat.of("lr")
    assert shown["metrics"] == ["lr", "local_accuracy"]
    assert shown["clients"] == list(range(0, 1000, 5))
    assert len(shown["rounds"]) <= clients.MOST_ROUNDS + 1
    for number, column in zip(shown["rounds"], shown["columns"], strict=True):
        assert column == [None if number % 2 else client / 1000 for client in shown["clients"]]


def test_runs_are_found_at_any_depth_without_following_links(tmp_path):
    for name in ("a", "deep/er/b", "odd <b>name</b> & %2e\n", "old-1", ".hidden", "a/inside"):
        run_directory(tmp_path / "root" / name)
    run_directory(tmp_path / "outside")
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    os.mkdir(os.fsencode(tmp_path / "root") + b"/\xff")  # not Unicode
    (tmp_path / "root" / "loop").symlink_to(tmp_path / "root")
    assert find(tmp_path / "root") == ["a", "deep/er/b", "odd <b>name</b> & %2e\n"]


OUTSIDE = [
    *("..", "../outside", "a/../../outside", "a/..", "./a", "/etc", "//etc", "a//", "", ".", "link", "link/"),
    *(
        "a\0b",
        "\0",
        "..\\outside",
        "%2e%2e/outside",
        "a/spec.toml",
        ".console",
        "a" * 5000,
        "a/" * 3000,
        "file",
    ),
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_name_leads_out_of_the_folder(tmp_path, name):
    root = (tmp_path / "root").resolve()
    run_directory(root / "a")
    run_directory(tmp_path / "outside")
    run_directory(root / ".console")
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "file").write_text("")
    assert place(root, "a") == root / "a"
    with pytest.raises(NoSuchRun):
        place(root, name)


@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("file", ["rounds.jsonl", "clients.jsonl", "problem.txt", ".lock", "bias.request"])
def test_a_directory_with_links_or_pipes_is_not_read(tmp_path, file, kind):
    path = run_directory(tmp_path / "run")
    secret = tmp_path / "secret"
    secret.write_text("a secret\n")
    (path / file).unlink(missing_ok=True)
    (path / file).symlink_to(secret) if kind == "link" else os.mkfifo(path / file)
    with pytest.raises(UserError, match="symbolic link" if kind == "link" else "pipe"):
        place(tmp_path, "run")
    row = Watch(tmp_path, "run").look()
    assert row["state"] == "failed"
    assert "secret" not in json.dumps(row)


def test_states_come_from_the_directory(tmp_path):
    path = run_directory(tmp_path / "run")
    watch = Watch(tmp_path, "run")
    assert watch.look()["state"] == "failed"  # records without a checkpoint: the rest of a run
    for file in path.glob("rounds.jsonl"):
        file.unlink()
    row = watch.look()
    assert (row["state"], row["task"], row["seed"], row["rounds"]) == ("interrupted", "synthetic", 3, 100)
    (path / "problem.txt").write_text("the disk is full\n")
    row = watch.look()
    assert (row["state"], row["problem"]) == ("failed", "the disk is full")


HOLD = """
import signal, sys
from pathlib import Path
from pagefl.runtime.own_files import LOCK
import fcntl
with (Path(sys.argv[1]) / LOCK).open("w") as held:
    fcntl.lockf(held, fcntl.LOCK_EX)
    print("held", flush=True)
    signal.pause()
"""


def test_the_kernel_knows_who_writes_a_run_and_only_they_are_stopped(tmp_path):
    path = run_directory(tmp_path / "run")
    assert holder.holder(path) is None
    (path / ".lock").write_text("1")  # what a file says is not believed
    assert holder.holder(path) is None
    with pytest.raises(UserError, match="no run is going on"):
        holder.stop(path)
    writer = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"held\n"
        assert holder.holder(path) == writer.pid
        assert Watch(tmp_path, "run").look()["state"] == "running"
        holder.stop(path)
        assert writer.wait() == -signal.SIGTERM
    finally:
        writer.kill()
    assert holder.holder(path) is None


def test_a_lock_of_one_process_is_not_its_own_to_see(tmp_path):
    """`holder` must not be asked by the process that holds the lock: closing the file would release it."""
    path = run_directory(tmp_path / "run")
    with (path / ".lock").open("w") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)
        assert holder.holder(path) is None


@pytest.mark.parametrize("name", ["", "..", "-x", "a/b", "a b", ".hidden", "x" * 101, "a\n", "--out=/etc"])
def test_new_runs_have_plain_names(tmp_path, name):
    with pytest.raises(UserError, match="name = "):
        Actions(tmp_path).start(name, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rounds", ["", "0", "-1", "1e3", "10 --restart", "9" * 30, "2.5"])
def test_an_extension_is_a_number_of_rounds(tmp_path, rounds):
    path = run_directory(tmp_path / "run")
    (path / "rounds.jsonl").unlink()
    with pytest.raises(UserError, match="rounds = "):
        Actions(tmp_path).resume("run", path, rounds)


def test_a_deployment_tells_its_outcome_and_is_stopped_as_a_whole(tmp_path):
    path = run_directory(tmp_path / "run", 0)
    write(path / "rounds.jsonl", round_of(1, missing=2, late=1, participants=3))
    (path / "outcome.json").write_text(json.dumps({"problem": "the SuperLink has died"}))
    (path / "rounds.jsonl").rename(path / "kept")
    row = Watch(tmp_path, "run").look()
    assert (row["state"], row["problem"], row["deployment"]) == ("failed", "the SuperLink has died", True)
    (path / "kept").rename(path / "rounds.jsonl")
    follow = Series(path)
    follow.look()
    assert (follow.columns()["missing"], follow.columns()["late"]) == ([2], [1])
    with pytest.raises(UserError, match="deployment"):
        Actions(tmp_path).resume("run", path)
    (path / "deploy").mkdir()
    server, whole = (
        subprocess.Popen([sys.executable, "-c", HOLD, str(where)], stdout=subprocess.PIPE)
        for where in (path, path / "deploy")
    )
    try:
        for process in (server, whole):
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
        Actions(tmp_path).stop("run", path)
        assert whole.wait() == -signal.SIGTERM
        assert server.poll() is None
    finally:
        server.kill()
        whole.kill()


@pytest.mark.parametrize("name", ["../outside", "..", "/etc", "link", "none"])
def test_events_lead_nowhere_else(tmp_path, name):
    from pagefl.console.live import Live

    root = tmp_path / "root"
    run_directory(root / "a")
    run_directory(tmp_path / "outside")
    (root / "link").symlink_to(tmp_path / "outside")
    look = Live(root, Actions(root)).run_changes(root.joinpath(*name.split("/")), name)
    told = asyncio.run(look())
    assert list(told) == ["gone"]
    assert asyncio.run(look()) is None


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_a_missing_extra_is_named(missing, monkeypatch, tmp_path):
    import importlib.util

    from pagefl.cli.console import console

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find(name))
    with pytest.raises(UserError, match=rf"needs {missing}.*pagefl\[console\]"):
        console(tmp_path)


def test_the_console_imports_no_torch():
    """It would double its memory, and the time until the first page."""
    heavy = "import pagefl.console.server, sys; sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", heavy], check=False).returncode == 0


def test_a_run_that_fails_leaves_a_sentence_until_it_goes_on(tmp_path):
    from federations import task

    import pagefl as package

    def fail(entry: dict[str, Any]) -> None:
        if entry["round"] == 2:
            raise RuntimeError("a tracker\nis broken")

    out = tmp_path / "run"
    with pytest.raises(RuntimeError):
        package.run(task=task(), rounds=3, out=out, observe=fail)
    row = Watch(tmp_path, "run").look()
    assert (row["state"], row["problem"]) == ("failed", "RuntimeError: a tracker\\nis broken")
    package.resume(out, task=task())
    assert not (out / "problem.txt").exists()
    assert Watch(tmp_path, "run").look()["state"] == "finished"


def test_compared_runs_have_the_colours_of_reports(tmp_path):
    def run(name, algorithm, players="fixed"):
        path = run_directory(tmp_path / name)
        spec = SPEC.replace('"a"', f'"{algorithm}"').replace('"fixed"', f'"{players}"')
        (path / "spec.toml").write_text(spec)
        return str(path)

    names = ["one", "two", "three", "four"]
    paths = [run("one", "ditto"), run("two", "fedavg"), run("three", "ditto"), run("four", "fedavg", "page")]
    expected = palette.colours(["ditto", "fedavg", "page"])
    found = desk.colours(paths, names)
    assert found == {
        "one": expected["ditto"],
        "two": expected["fedavg"],
        "three": expected["ditto"],
        "four": expected["page"],
    }
    assert len(set(desk.colours(paths[::2], names[::2]).values())) == 2  # one method alone


def test_every_setting_of_a_run_has_its_meaning(tmp_path):
    rows = desk.settings(str(run_directory(tmp_path / "run")))["rows"]
    silent = {row["name"] for row in rows if not row["meaning"]}
    assert silent == {"task.name", "algorithm.name", "players.name"}
    assert {"defence.name", "attack.name", "privacy.clip", "devices.name"} <= {row["name"] for row in rows}
