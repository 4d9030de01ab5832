"""Comparing runs: each run once, only on the same data, only where finished; own tasks and algorithms by
their names.
"""

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from federations import task
from rich.console import Console

import pagefl
from pagefl import UserError
from pagefl.cli import main, sweeps
from pagefl.experiments import compare
from pagefl.experiments import spec as specs
from pagefl.experiments.compare import Recorded
from pagefl.experiments.paper import TABLES, Panel, Published, Row, Table
from pagefl.experiments.scales import experiment
from pagefl.experiments.sweep import Found, name_of
from pagefl.reports import figures, reproduce, tables

SMALL = {"task": {"name": "synthetic", "clients": 3}, "epochs": 1, "rounds": 2}


@dataclass(frozen=True)
class Damped(pagefl.Algorithm):
    """An algorithm that no registry knows."""

    factor: float = 0.5


class Stopped(Exception):
    pass


def spec(**settings):
    return specs.resolve({**SMALL, **settings})


def records(*accuracies: float) -> list[dict]:
    return [{"round": i, "global_accuracy": a, "local_accuracy": a} for i, a in enumerate(accuracies, 1)]


def recorded(last: float, name: str = "", **settings) -> Recorded:
    own = spec(**settings)
    return Recorded(name or f"{own.label} {own.seed} {last}", own, records(0.1, last), True)


def summary(runs: list[Recorded]) -> tuple[pd.DataFrame, list[str]]:
    said: list[str] = []
    return compare.summary(compare.by_run(runs, said.append)), said


def stop_after_two(entry: dict) -> None:
    if entry["round"] == 2:
        raise Stopped


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Own task: a method of the registry and an own one on two seeds, one seed of which has not finished."""
    made = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        pagefl.run(task=task(), algorithm="fedavg", seed=seed, out=made / "known" / f"s{seed}")
    pagefl.run(task=task(), algorithm=Damped(), seed=0, out=made / "own" / "s0")
    with pytest.raises(Stopped):
        pagefl.run(
            task=task(),
            algorithm=Damped(),
            seed=1,
            checkpoint_seconds=0.0,
            out=made / "own/s1",
            observe=stop_after_two,
        )
    (made / "empty").mkdir()
    return made


def run_cli(monkeypatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["pagefl", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code or 0


def test_own_tasks_and_algorithms_are_compared_by_name_and_the_unfinished_marked(folder):
    said: list[str] = []
    found = pagefl.compare(folder, say=said.append)
    assert found[["task", "data", "method", "seeds", "unfinished"]].to_numpy().tolist() == [
        ["small-linear", "small-linear", "fedavg", 2, 0],
        ["small-linear", "small-linear", "damped", 1, 1],
    ]
    last = [
        pagefl.load(folder / "known" / f"s{seed}", task=task()).rounds[-1]["global_accuracy"]
        for seed in (0, 1)
    ]
    assert found["global_last_mean"][0] == pytest.approx(sum(last) / 2)
    assert said == [f"left out: {folder / 'own/s1'}: unfinished, round 2 of 3"]


def test_a_run_that_came_to_rest_is_finished(tmp_path):
    still = {
        "stop": "equilibrium",
        "equilibrium_window": 2,
        "equilibrium_models": 1e9,
        "equilibrium_payoffs": 1e9,
    }
    run = pagefl.run(task=task(), algorithm="fedavg", rounds=50, out=tmp_path / "run", **still)
    assert len(run.rounds) < 50
    assert pagefl.compare(tmp_path)[["seeds", "unfinished"]].to_numpy().tolist() == [[1, 0]]


def test_a_directory_counts_once_however_it_is_named(folder, tmp_path):
    links = tmp_path / "links"
    links.mkdir()
    (links / "to a run").symlink_to(folder / "known/s0")
    (links / "to a folder").symlink_to(folder / "known")
    (links / "round and round").symlink_to(links)
    said: list[str] = []
    found = pagefl.compare([folder / "known/s0", folder / "known/s0", links], say=said.append)
    assert found["seeds"].tolist() == [2]
    assert said == [f"left out: {folder / 'known/s0'}: no run in it that is not already counted"]


def test_a_copied_directory_is_not_another_seed(folder, tmp_path):
    for name in ("a", "b", "c"):
        shutil.copytree(folder / "known/s0", tmp_path / name)
    with pytest.warns(UserWarning, match="a copy of") as told:
        found = pagefl.compare(tmp_path)
    assert found["seeds"].tolist() == [1]
    assert len(told) == 2


def test_runs_in_memory_are_compared():
    runs = [
        pagefl.run(task=task(), algorithm=algorithm, seed=s)
        for algorithm in ("fedavg", Damped())
        for s in (0, 1)
    ]
    found = pagefl.compare(runs)
    assert found[["method", "seeds"]].to_numpy().tolist() == [["fedavg", 2], ["damped", 2]]
    assert found["global_last_mean"][0] == pytest.approx(
        sum(run.rounds[-1]["global_accuracy"] for run in runs[:2]) / 2
    )
    runs[0].settings = None
    with pytest.raises(UserError, match="run 1 has no spec"):
        pagefl.compare(runs)


def test_a_copy_with_other_records_is_refused():
    same = [recorded(0.5, "a"), recorded(0.5, "b", workers=2, clients_every=0)]
    found, said = summary(same)
    assert found["seeds"].tolist() == [1]
    assert said == ["left out: b: a copy of a (same settings, same seed)"]
    with pytest.raises(UserError, match="a and c have the same settings and seed but different records"):
        summary([recorded(0.5, "a"), recorded(0.6, "c")])


def test_an_unfinished_copy_gives_way_to_the_finished_run():
    whole = recorded(0.5, "whole")
    found, said = summary([Recorded("half", whole.spec, whole.rounds[:1], False), whole])
    assert found[["seeds", "unfinished"]].to_numpy().tolist() == [[1, 0]]
    assert said == ["left out: half: a copy of whole (same settings, same seed)"]


def test_contests_are_within_one_data_setting():
    """On hard data the better method has less than the worse has on easy data: pooled, it would lose."""
    runs = []
    for clients, base in ((3, 0.4), (4, 0.8)):
        for seed, noise in enumerate((0.0, 0.01, 0.02)):
            own = {"task": {"name": "synthetic", "clients": clients}, "seed": seed}
            runs.append(recorded(base + 0.1 + noise, algorithm="fedavg", **own))
            runs.append(recorded(base + noise / 2, algorithm="fedprox", **own))
    found, _ = summary(runs)
    assert found["data"].tolist() == ["synthetic, clients = 3"] * 2 + ["synthetic, clients = 4"] * 2
    assert found["method"].tolist() == ["fedavg", "fedprox"] * 2
    assert found["global_verdict"].tolist() == ["wins", "loses"] * 2
    assert found["global_difference"].to_numpy() == pytest.approx([0.105, -0.105] * 2)
    titles = [table.title for table in tables.of_summary(found) if "against" in table.title]
    assert [title.split(":")[0] for title in titles] == ["synthetic, clients = 3", "synthetic, clients = 4"]


def test_a_holdout_is_another_data_setting():
    found, _ = summary([recorded(0.5), recorded(0.6, algorithm="fedprox", holdout=0.1)])
    assert found["data"].tolist() == ["synthetic, holdout = 0.0", "synthetic, holdout = 0.1"]
    assert found["global_verdict"].isna().all()


def test_names_tell_what_differs():
    wanted = [spec(), spec(seed=1), spec(lr=0.2), spec(algorithm="fedprox"), spec(workers=2)]
    lr = "fedavg, lr = 0.1"
    assert compare.methods(wanted) == [lr, lr, "fedavg, lr = 0.2", "fedprox", lr]


def test_methods_that_ran_for_other_rounds_say_so():
    wanted = [spec(), spec(algorithm="fedprox", rounds=9), spec(algorithm="feddyn", participation=0.5)]
    assert compare.methods(wanted) == [
        "fedavg, rounds = 2, participation = 1.0",
        "fedprox, rounds = 9, participation = 1.0",
        "feddyn, rounds = 2, participation = 0.5",
    ]
    assert compare.methods(wanted[:1]) == ["fedavg"]


def test_two_seeds_and_equal_differences_win_nothing():
    runs = [
        recorded(last, algorithm=a, seed=s)
        for a, last in (("fedavg", 0.6267), ("fedprox", 0.6))
        for s in (0, 1)
    ]
    cells = [
        row for table in tables.of_summary(summary(runs)[0]) if "against" in table.title for row in table.rows
    ]
    assert cells[0] == ["fedavg", *["+2.67 vs fedprox (seeds: 2, at least 3 needed)"] * 2]
    runs += [recorded(last, algorithm=a, seed=2) for a, last in (("fedavg", 0.6267), ("fedprox", 0.6))]
    cells = [
        row for table in tables.of_summary(summary(runs)[0]) if "against" in table.title for row in table.rows
    ]
    assert cells[1] == ["fedprox", *["-2.67 vs fedavg (the same on every seed: no interval)"] * 2]


def test_what_was_not_measured_is_a_dash():
    made = tables.of_summary(summary([recorded(0.5), recorded(0.6, algorithm="fedprox", seed=4)])[0])
    text = "\n".join(table.markdown() for table in made)
    assert "nan" not in text
    # no seed is shared
    assert next(table for table in made if "against" in table.title).rows[0] == ["fedavg", "–", "–"]
    assert "| fedavg | – | 0 of 1 | – |" in text  # two rounds converge nowhere


def test_names_from_a_foreign_spec_cannot_control_a_terminal_or_break_a_table():
    table = tables.Table("a\x1b[2J", ["", "x"], [["b|c\nd\x1b]0;e", "[/bold]"]])
    assert table.markdown().splitlines()[-1] == r"| b\|c�d�]0;e | [/bold] |"
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    console.print(table.terminal())
    assert "\x1b]" not in console.file.getvalue()
    assert "\x1b[2J" not in console.file.getvalue()
    assert "[/bold]" in console.file.getvalue()


def test_json_csv_markdown_and_terminal(folder, monkeypatch, capsys):
    frame = pagefl.compare(folder, say=lambda message: None)
    assert run_cli(monkeypatch, "compare", folder, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in rows] == ["fedavg", "damped"]
    assert rows[0]["global_last_mean"] == pytest.approx(frame["global_last_mean"][0])
    assert rows[0]["global_low"] is None
    assert run_cli(monkeypatch, "compare", folder, "--csv") == 0
    read = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert list(read[0]) == list(frame)
    assert float(read[1]["local_last_mean"]) == pytest.approx(frame["local_last_mean"][1])
    assert run_cli(monkeypatch, "compare", folder) == 0
    told = capsys.readouterr()
    assert told.out.startswith("## small-linear\n\n|  | global, last |")
    assert "unfinished, round 2 of 3" in told.err
    monkeypatch.setattr(sweeps, "console", Console(force_terminal=True, width=100, color_system=None))
    assert run_cli(monkeypatch, "compare", folder) == 0
    told = capsys.readouterr()
    assert "|" not in told.out
    assert "global, last" in told.out
    assert run_cli(monkeypatch, "compare", folder, "--csv", "--json") == 2
    assert "choose one of the two" in capsys.readouterr().err


def test_bad_sources_are_one_sentence(folder, tmp_path):
    with pytest.raises(UserError, match="there is no such directory"):
        pagefl.compare([folder, tmp_path / "nowhere"])
    with pytest.raises(UserError, match="no run found"), pytest.warns(UserWarning, match="no run in it"):
        pagefl.compare(folder / "empty")
    for text, words in (
        ("", "task.name is missing"),
        ('task = "synthetic"', "task.name is missing"),
        ('lr = -1\n[task]\nname = "t"\n[algorithm]\nname = "a"\n[players]\nname = "p"', "spec.toml: lr = -1"),
        ("[", "not valid TOML"),
    ):
        (tmp_path / "spec.toml").write_text(text)
        with pytest.raises(UserError, match=words):
            pagefl.compare(tmp_path)
    (tmp_path / "spec.toml").write_text(spec().toml())
    (tmp_path / "rounds.jsonl").write_text('{"round": 1, "global_accuracy": "high"}\n')
    with pytest.raises(UserError, match="checkpoint is missing"):
        pagefl.compare(tmp_path)


def found(name: str, spec: specs.RunSpec, rise: int) -> Found:
    """A run of 200 rounds that rises to 80 % until a round, and stays."""
    curve = [0.8 * min(1.0, i / rise) for i in range(1, 201)]
    return Found(name_of(spec), spec, [{**one, "seconds": 0.1} for one in records(*curve)], Path(name))


def test_table2_shows_rounds_and_table1_accuracies():
    block, same = (experiment(name, "paper").blocks[0] for name in ("table2", "table1"))
    runs = [found("x", own, rise) for own, rise in zip(block.rows["ditto"], (50, 60, 200), strict=True)]
    (made,) = tables.of_block(block, runs)
    row = next(row for row in made.rows if row[0] == "ditto")
    told = dict(zip(made.columns, row, strict=True))
    # Rounds 68 and 78: a mean of 20 rounds with one still below, which costs 80/50/20 = 0.08 and 80/60/20 =
    # 0.07 points.
    assert told["local: round"] == "73 ± 7"
    assert told["local: seeds converged"] == "2 of 3"
    assert told["local: accuracy then"] == "79.93 ± 0.01"
    assert told["published: round"] == "491 (local)"
    assert next(row for row in made.rows if row[0] == "page")[1:] == ["–"] * 6 + ["891 (global)"]
    accuracies = tables.of_block(same, runs)
    assert not {column for table in accuracies for column in table.columns if "round" in column}
    assert accuracies[0].columns[-2:] == ["published: global", "published: local"]


def test_the_numbers_of_clients_are_no_contest():
    clients, ratios = experiment("table4", "laptop").blocks
    runs = [found("x", own, 50) for block in (clients, ratios) for row in block.rows.values() for own in row]
    assert not any("against" in table.title for table in tables.of_block(clients, runs))
    assert any("against" in table.title for table in tables.of_block(ratios, runs))


def test_table2_is_written_without_table1s_figure(tmp_path):
    wanted = experiment("table2", "paper")
    made, written = reproduce.write(wanted, "paper", tmp_path, tmp_path / "runs")
    assert made[0].title == "synthetic: convergence"
    assert {path.name for path in written} == {"table2-paper.md", "table2-paper.tex", "table2-paper.csv"}
    assert "published: round" in (tmp_path / "table2-paper.csv").read_text()


@pytest.mark.parametrize("figure", [*figures.FIGURES, None])
def test_a_new_table_is_one_entry(figure, tmp_path, monkeypatch, capsys):
    panels = (
        Panel(
            "synthetic",
            {"slow": Row({"algorithm": "fedavg", "lr": 0.01}, Published(12.0, 34.5, 0.1))},
            shows=("accuracy",),
        ),
        Panel(
            "synthetic-mlp",
            {"fast": Row({"algorithm": "fedavg", "lr": 1.0})},
            about="with a body",
            shows=("clients",),
        ),
    )
    monkeypatch.setitem(TABLES, "mine", Table("Two rates", panels, figure))
    wanted = experiment("mine", "smoke")
    assert [spec.lr for spec in wanted.specs] == [0.01, 0.01, 1.0, 1.0]  # two seeds each
    runs = [found("x", own, 50) for own in wanted.specs]
    monkeypatch.setattr(reproduce.sweep, "finished", lambda specs, folder, kept: runs)
    monkeypatch.setattr(reproduce.record, "read", lambda path: ([], []))
    made, written = reproduce.write(wanted, "smoke", tmp_path, tmp_path / "runs")
    assert [table.title for table in made] == ["synthetic", "synthetic-mlp, with a body: clients, last round"]
    assert made[0].rows == [["slow", *["80.00 ± 0.00"] * 4, "–", "2", "12.00 ± 0.10", "34.50"]]
    drawn = {f"mine-smoke-{figure}{suffix}" for suffix in (".png", ".svg")} if figure else set()
    assert {path.name for path in written} == {
        f"mine-smoke{suffix}" for suffix in (".md", ".tex", ".csv", ".html")
    } | drawn
    monkeypatch.setattr("sys.argv", ["pagefl", "list", "tables"])
    with pytest.raises(SystemExit):
        main()
    assert re.search(r"^ mine +Two rates +$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.slow
def test_a_sweep_from_a_plain_script(tmp_path):
    """One row per run. The script has no `if __name__ == "__main__"`, and is not executed again by the runs'
    processes.
    """
    script = tmp_path / "script.py"
    script.write_text(
        "import pagefl\n"
        "print('started')\n"
        "lists = {'algorithm': ['fedavg', 'fedprox'], 'lr': [0.1, 1e30], 'seed': [0, 0]}\n"
        "made = pagefl.sweep({'epochs': 1, 'on_bad_upload': 'stop'}, task='synthetic', clients=3, "
        "rounds=2, sweep=lists,\n"
        f"    out={str(tmp_path / 'runs')!r}, jobs=2)\n"
        f"made.to_csv({str(tmp_path / 'made.csv')!r}, index=False)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("started") == 1
    assert "2 of 4 runs are not finished" in done.stderr
    made = pd.read_csv(tmp_path / "made.csv")
    assert made[["algorithm", "lr", "seed", "finished"]].to_numpy().tolist() == [
        ["fedavg", 0.1, 0, True],
        ["fedavg", 1e30, 0, False],
        ["fedprox", 0.1, 0, True],
        ["fedprox", 1e30, 0, False],
    ]
    assert (
        made["global_last"].notna().tolist() == made["problem"].isna().tolist() == [True, False, True, False]
    )
    assert "not finite" in made["problem"][1]


def test_bad_sweeps_are_one_sentence(tmp_path):
    with pytest.raises(UserError, match="jobs = -1: must be 0 or greater"):
        pagefl.sweep(SMALL, sweep={"seed": [0]}, jobs=-1, out=tmp_path / "runs")
    with pytest.raises(UserError, match="sweep: task must be a name"):
        pagefl.sweep(task=task(), sweep={"seed": [0]}, out=tmp_path / "runs")
    with pytest.raises(UserError, match="table of lists"):
        pagefl.sweep(SMALL, out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
