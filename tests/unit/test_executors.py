"""The executors of a sweep: the same files whoever runs it, and a task that is lost goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import pagefl
from pagefl import UserError
from pagefl.cli import main
from pagefl.experiments import ledger, sweep
from pagefl.experiments import spec as specs
from pagefl.experiments.executors import NEEDS, Place, one_run, slurm_jobs
from pagefl.runtime import checkpoint

SMALL = {"task": {"name": "synthetic", "clients": 3}, "epochs": 1, "rounds": 4, "workers": 1}
GRID = {**SMALL, "sweep": {"seed": [0, 1]}}
ray_only = [
    pytest.mark.slow,
    pytest.mark.xdist_group("ray"),
    pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed"),
]
slurm_only = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("submitit") is None, reason="submitit is not installed"),
]
CLUSTERS = [
    pytest.param("ray", "", marks=ray_only, id="ray"),
    pytest.param("slurm", "local", marks=slurm_only, id="slurm-local"),
    pytest.param("slurm", "debug", marks=slurm_only, id="slurm-debug"),
]


def results(folder: Path) -> dict[str, object]:
    """Everything that runs have written, but for seconds and the number of workers."""
    found: dict[str, object] = {}
    for path in sorted(folder.glob("synthetic-*/*")):
        key = f"{path.parent.name}/{path.name}"
        if path.suffix == ".jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            found[key] = [
                {name: value for name, value in line.items() if name != "seconds"} for line in lines
            ]
        elif path.name == "spec.toml":
            found[key] = specs.read(path) | {"workers": None}
        elif path.name == checkpoint.NAME:
            tensors, facts = checkpoint.read(path)
            found[key] = {name: value.numpy().tobytes() for name, value in tensors.items()}
            found[f"{key} facts"] = facts["round"], facts["over"]
        else:
            found[key] = None
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    """The same runs by processes of this machine."""
    folder = tmp_path_factory.mktemp("plain")
    sweep.run_missing(sweep.grid(GRID), folder / "runs", 2, kept=folder / ledger.NAME)
    return folder


@pytest.mark.parametrize(("executor", "cluster"), CLUSTERS)
def test_runs_and_ledger_are_those_of_local_processes(executor, cluster, plain, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm_jobs, "CLUSTER", cluster)
    seen = []
    done = sweep.run_missing(
        sweep.grid(GRID),
        tmp_path / "runs",
        watch=lambda progress: seen.append(progress.finished),
        kept=tmp_path / ledger.NAME,
        place=Place(executor),
    )
    assert (done.finished, done.failed, done.rounds_done, seen[-1]) == (2, {}, 8, 2)
    assert results(tmp_path / "runs") == results(plain / "runs")
    ledgers = [
        sorted(
            [
                {**json.loads(line), "seconds": None}
                for line in (folder / ledger.NAME).read_text().splitlines()
            ],
            key=lambda line: line["name"],
        )
        for folder in (tmp_path, plain)
    ]
    assert ledgers[0] == ledgers[1]


@pytest.mark.parametrize(("executor", "cluster"), CLUSTERS)
def test_a_run_that_fails_is_named_and_the_other_goes_on(executor, cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm_jobs, "CLUSTER", cluster)
    lists = {"lr": [0.1, 1e30]}
    with pytest.warns(UserWarning, match="1 of 2 runs are not finished"):
        frame = pagefl.sweep(
            {**SMALL, "on_bad_upload": "stop"}, sweep=lists, out=tmp_path / "runs", executor=executor
        )
    assert frame["problem"].isna().tolist() == [True, False]
    assert "not finite" in frame["problem"][1]


LONG = specs.resolve({**SMALL, "rounds": 3000, "checkpoint_seconds": 0.2})


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    sweep.run_missing([LONG], folder, 1)
    return folder


def holder(path: Path) -> int:
    """The process that has locked a run's directory."""
    inode = (path / ".lock").stat().st_ino
    for line in Path("/proc/locks").read_text().splitlines():
        if "->" in line:  # anybody's program that waits for a lock
            continue
        _, _, _, _, pid, where, *_ = line.split()
        if int(where.rsplit(":", 1)[1]) == inode:
            return int(pid)
    raise AssertionError("nobody has locked it")


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
def test_a_killed_ray_task_goes_on_with_the_same_bits(undisturbed, tmp_path):
    killed: list[int] = []

    def kill(progress):
        if not killed and progress.rounds_done > 3:
            killed.append(progress.rounds_done)
            os.kill(holder(tmp_path / sweep.name_of(LONG)), signal.SIGKILL)

    done = sweep.run_missing([LONG], tmp_path, watch=kill, place=Place("ray"))
    assert (done.finished, done.failed) == (1, {})
    assert killed[0] < LONG.rounds
    assert results(tmp_path) == results(undisturbed)


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
def test_a_run_goes_on_when_its_node_is_lost(undisturbed, tmp_path):
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 10**8})
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=10**8)]
    lost: list[int] = []

    def lose_the_node(progress):
        if not lost and progress.rounds_done > 3:
            lost.append(progress.rounds_done)
            nodes.append(cluster.add_node(num_cpus=1, object_store_memory=10**8))
            cluster.remove_node(nodes[0], allow_graceful=False)

    try:
        done = sweep.run_missing([LONG], tmp_path, watch=lose_the_node, place=Place("ray", cluster.address))
    finally:
        cluster.shutdown()
    assert (done.finished, done.failed) == (1, {})
    assert lost[0] < LONG.rounds
    assert results(tmp_path) == results(undisturbed)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("submitit") is None, reason="submitit is not installed")
def test_a_requeued_job_goes_on_with_the_same_bits(undisturbed, tmp_path, monkeypatch):
    """Slurm's signals of a preemption: a TERM, and then the one by which submitit queues it again."""
    monkeypatch.setattr(slurm_jobs, "CLUSTER", "local")
    signals, processes, stopped = [signal.SIGTERM, signal.SIGUSR2], [], []

    def preempt(progress):
        if signals and progress.rounds_done > 3:
            processes.append(processes[0] if processes else holder(tmp_path / sweep.name_of(LONG)))
            os.kill(processes[-1], signals.pop(0))
            stopped.append(progress.rounds_done)

    done = sweep.run_missing([LONG], tmp_path, watch=preempt, place=Place("slurm"))
    assert (done.finished, done.failed) == (1, {})
    assert len(stopped) == 2
    assert stopped[1] < LONG.rounds
    assert results(tmp_path) == results(undisturbed)
    logs = "".join(path.read_text() for path in tmp_path.glob("slurm/*_log.*"))
    assert "Requeued job" in logs


@pytest.mark.slow
@pytest.mark.skipif(find_spec("submitit") is None, reason="submitit is not installed")
def test_a_job_that_is_killed_is_named_with_its_log(tmp_path, monkeypatch):
    monkeypatch.setattr(slurm_jobs, "CLUSTER", "local")
    monkeypatch.setattr("submitit.core.core.Job._results_timeout_s", 0)
    killed = []

    def kill(progress):
        if not killed and progress.rounds_done > 3:
            killed.append(holder(tmp_path / sweep.name_of(LONG)))
            os.kill(killed[0], signal.SIGKILL)

    done = sweep.run_missing([LONG], tmp_path, watch=kill, place=Place("slurm"))
    (problem,) = done.failed.values()
    assert "its Slurm job " in problem
    assert "_log.err" in problem
    again = sweep.run_missing([LONG], tmp_path, 1)
    assert (again.finished, again.failed) == (1, {})


@pytest.mark.parametrize(("executor", "cluster"), CLUSTERS[:2])
def test_a_ctrl_c_stops_the_tasks_and_keeps_their_rounds(executor, cluster, tmp_path):
    (tmp_path / "grid.toml").write_text(
        "rounds = 100000\n[task]\nname = 'synthetic'\nclients = 3\n[sweep]\nseed = [0, 1]\n"
    )
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    chosen = f"from pagefl.experiments.executors import slurm_jobs; slurm_jobs.CLUSTER = '{cluster}'"
    line = [sys.executable, "-c", f"{heard}; {chosen}; from pagefl.cli import main; main()", "sweep"]
    line += [str(tmp_path / "grid.toml"), "--out", str(tmp_path / "runs"), "--executor", executor]
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while len([path for path in tmp_path.glob("runs/*/rounds.jsonl") if path.stat().st_size]) < 2:
        time.sleep(0.1)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 130, said
    assert "pagefl: interrupted" in said
    assert "Traceback" not in said or executor == "slurm"  # submitit's local stand-in for Slurm prints one
    for folder in tmp_path.glob("runs/synthetic-*"):
        while True:  # a Slurm job may still be ending
            try:
                holder(folder)
            except AssertionError:
                break
            time.sleep(0.1)
        rounds = (folder / "rounds.jsonl").read_bytes().splitlines()
        facts = checkpoint.read_facts(folder / "checkpoint")
        assert facts["round"] <= len(rounds)
        assert facts["round"] == len(rounds) or executor == "slurm"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--executor", "spark"], "executor = 'spark': expected local, ray, slurm"),
        (["--address", "auto"], "address = 'auto': only the executor ray has an address"),
        (["--slurm", "partition=short"], "are options of the executor slurm"),
        (["--executor", "slurm", "--slurm", "partition"], "--slurm partition: expected KEY=VALUE"),
        (["--executor", "slurm", "--slurm", "=short"], "--slurm =short: expected KEY=VALUE"),
        (["--executor", "slurm", "--slurm", "time=2:00:00"], "expected whole minutes, such as 120"),
        (["--executor", "slurm", "--slurm", "cpus-per-task=0"], "expected a whole number of CPUs"),
        (["--executor", "slurm", "--slurm", "nodes=2"], "one job is one run, on one node"),
        (["--executor", "slurm", "--slurm", "Große=2"], "expected an option of sbatch"),
    ],
)
def test_bad_options_are_one_sentence(arguments, sentence, tmp_path, monkeypatch, capsys):
    (tmp_path / "grid.toml").write_text("[sweep]\nseed = [0]\n")
    for command in (["sweep", str(tmp_path / "grid.toml")], ["reproduce", "table1", "--scale", "smoke"]):
        monkeypatch.setattr("sys.argv", ["pagefl", *command, "--out", str(tmp_path / "runs"), *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 2
        assert sentence in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("executor", ["ray", "slurm"])
def test_a_missing_package_is_named_with_its_extra(executor, monkeypatch):
    monkeypatch.setattr("pagefl.experiments.executors.find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf"needs {NEEDS[executor]}.*pagefl\[cluster\]"):
        Place(executor)
    assert Place("local")


@pytest.mark.skipif(find_spec("submitit") is None, reason="submitit is not installed")
def test_without_slurm_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="there is no srun here"):
        sweep.run_missing(sweep.grid(GRID), tmp_path / "runs", place=Place("slurm"))


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere"])
def test_an_address_without_a_cluster_is_said(address, tmp_path):
    with pytest.raises(UserError, match="cannot connect to a Ray cluster there"):
        sweep.run_missing(sweep.grid(GRID), tmp_path / "runs", place=Place("ray", address))


@pytest.mark.skipif(find_spec("submitit") is None, reason="submitit is not installed")
def test_options_of_sbatch_reach_the_script(tmp_path, monkeypatch):
    """With programs of Slurm that only keep the script."""
    for name, text in {
        "srun": "",
        "sbatch": f'cp "$1" {tmp_path}/script\necho Submitted batch job 7',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    options = {"partition": "short", "time": "30", "mem": "8GB", "exclusive": "true", "reservation": "mine"}
    jobs = slurm_jobs.SlurmJobs(0, options, tmp_path / "runs")
    tasks = [one_run.Task(name, "", str(tmp_path / name), 4, False) for name in ("a", "b")]
    jobs.start(tasks)
    script = (tmp_path / "script").read_text().splitlines()
    for line in (
        *("partition=short", "time=30", "mem=8GB", "exclusive", "reservation=mine", "cpus-per-task=4"),
        *("array=0-1%2", "job-name=pagefl", "signal=USR2@90"),
    ):
        assert f"#SBATCH --{line}" in script
    assert sorted(job.job_id for job in jobs.tasks.values()) == ["7_0", "7_1"]


@pytest.mark.skipif(find_spec("submitit") is None, reason="submitit is not installed")
def test_what_sbatch_refuses_is_one_sentence(tmp_path, monkeypatch):
    for name, text in {"srun": "", "sbatch": "echo 'sbatch: error: invalid partition' >&2\nexit 1"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    jobs = slurm_jobs.SlurmJobs(0, {"partition": "none"}, tmp_path / "runs")
    with pytest.raises(UserError, match="sbatch refused the jobs: sbatch: error: invalid partition"):
        jobs.start([one_run.Task("a", "", str(tmp_path / "a"), 0, False)])


def test_a_node_must_share_the_folder_and_the_versions(tmp_path):
    text, here = specs.resolve(SMALL).toml(), one_run.versions()
    ending = one_run.attempt_on_node(text, str(tmp_path / "gone" / "run"), 1, here)
    assert "does not see" in str(ending.problem)
    assert "choose a folder that all nodes share" in str(ending.problem)
    ending = one_run.attempt_on_node(text, str(tmp_path / "run"), 1, {**here, "torch": "1.0"})
    assert "but the sweep was started with 1.0" in str(ending.problem)
    assert f"torch {torch.__version__.split('+')[0]}" in str(ending.problem)
    assert not any(tmp_path.iterdir())


def test_a_run_that_cannot_be_seen_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "LOOK_SECONDS", 0.0)
    ending = one_run.Ending(finished=True, node="node7")
    problem = sweep._problem(ending, tmp_path / "run")
    assert problem is not None
    assert problem.startswith("it finished on node7, but ")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / one_run.FINISHED).touch()
    assert sweep._problem(ending, tmp_path / "run") is None
