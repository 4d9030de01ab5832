"""Cores are those of the allocation, never of the whole machine."""

import os

import pytest

from pagefl.core import cores


@pytest.mark.parametrize(
    ("groups", "files", "environment", "expected"),
    [
        ("0::/\n", {}, {}, 8),
        ("0::/\n", {"cpu.max": "max 100000"}, {}, 8),
        ("0::/job\n", {"job/cpu.max": "300000 100000"}, {}, 3),
        ("0::/a/b\n", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "400000 100000"}, {}, 2),  # the outer one
        ("0::/job\n", {"job/cpu.max": "50000 100000"}, {}, 1),  # half a core
        (
            "4:cpu,cpuacct:/x\n0::/\n",
            {"cpu/x/cpu.cfs_quota_us": "250000\n", "cpu/x/cpu.cfs_period_us": "100000\n"},
            {},
            2,
        ),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, {}, 8),
        ("0::/\n", {}, {"SLURM_CPUS_PER_TASK": "4", "SLURM_CPUS_ON_NODE": "6"}, 4),
        ("0::/\n", {}, {"SLURM_CPUS_ON_NODE": "6"}, 6),
        ("0::/\n", {}, {"SLURM_CPUS_PER_TASK": "64"}, 8),  # the affinity is stricter
        ("0::/\n", {}, {"SLURM_CPUS_PER_TASK": "many"}, 8),
    ],
)
def test_the_strictest_limit_counts(groups, files, environment, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for name in cores.SLURM:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for name, text in {
        "proc/self/cgroup": groups,
        **{f"sys/fs/cgroup/{place}": text for place, text in files.items()},
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cores.available(tmp_path) == expected


def test_without_control_groups_the_affinity_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5})
    for name in cores.SLURM:
        monkeypatch.delenv(name, raising=False)
    assert cores.available(tmp_path) == 2
