"""What does not fit is refused before it is made, with both numbers."""

import re
import shutil
import subprocess
import sys
from collections import namedtuple

import pytest
import torch
from federations import task

import pagefl
from pagefl import UserError
from pagefl.agents.ddpg import DdpgSettings
from pagefl.core import memory, rng
from pagefl.core.layout import Layout
from pagefl.core.training import batches
from pagefl.data.synthetic import BYTES, synthetic
from pagefl.experiments import spec as specs
from pagefl.experiments.tasks import TASKS
from pagefl.game.learner import Learner, Learning
from pagefl.runtime import workers

MACHINE = "MemTotal: 64000 kB\nMemAvailable: 32000 kB\n"


def machine(root, groups: str, **files: str) -> int:
    """A made-up machine with 32,768,000 bytes, and `files` below /sys/fs/cgroup."""
    for name, text in {"proc/meminfo": MACHINE, "proc/self/cgroup": groups}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for place, values in files.items():
        limit, used, cached = values.split()
        folder = root / "sys/fs/cgroup" / place
        folder.mkdir(parents=True, exist_ok=True)
        names = (
            ("limit_in_bytes", "usage_in_bytes", "total_")
            if place.startswith("memory")
            else ("max", "current", "")
        )
        (folder / f"memory.{names[0]}").write_text(limit)
        (folder / f"memory.{names[1]}").write_text(used)
        (folder / "memory.stat").write_text(f"anon 5\n{names[2]}inactive_file {cached}\n")
    return memory.available(root)


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {}, 32_768_000),
        ("0::/\n", {".": "max 5 0"}, 32_768_000),
        ("0::/\n", {".": "1000 400 0"}, 600),
        ("0::/\n", {".": "1000 400 300"}, 900),  # cached files make room
        ("0::/a/b\n", {"a": "1000 400 0", "a/b": "max 300 0"}, 600),  # an outer group is a limit too
        ("0::/a/b\n", {"a": "1000 400 0", "a/b": "500 300 0"}, 200),
        ("0::/../elsewhere\n", {".": "1000 400 0"}, 600),
        ("4:cpu,memory:/x/y\n0::/\n", {"memory/x": "1000 100 0", "memory/x/y": "800 100 50"}, 750),
        ("4:memory:/gone\n", {"memory": "9223372036854771712 100 0"}, 32_768_000),
        ("4:memory:/\n", {"memory": "300 400 0"}, 0),
    ],
)
def test_every_group_around_us_is_a_limit(groups, files, expected, tmp_path):
    assert machine(tmp_path, groups, **files) == expected


@pytest.mark.parametrize(
    ("size", "text"),
    [(5, "5 B"), (1500, "1.5 kB"), (123_456, "123.5 kB"), (10**9, "1 GB"), (19_200 * 10**12, "19.2 PB")],
)
def test_sizes_for_people(size, text):
    assert memory.readable(size) == text


def test_both_numbers_are_said(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 10**9)
    memory.needs(10**9, "these", "use fewer")
    with pytest.raises(UserError, match=r"^these need about 2 GB of memory, and 1 GB are free; use fewer$"):
        memory.needs(2 * 10**9, "these", "use fewer")


def test_synthetic_data_are_measured_before_they_are_drawn(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 10**9)
    most = 10**9 // (BYTES * 375)
    usual = rng.stream
    monkeypatch.setattr(
        rng, "stream", lambda *names: pytest.fail("drawn") if "client" in names else usual(*names)
    )
    with pytest.raises(
        UserError, match=f"clients = {most + 1}: their examples need about 1 GB of memory, and 1 GB are free"
    ):
        synthetic(most + 1, 0)


def test_sizes_that_are_drawn_are_added_up(monkeypatch):
    """With theta = 3 a few clients have thousands of times as many examples as the others."""
    monkeypatch.setattr(memory, "available", lambda: 10**8)
    with pytest.raises(
        UserError, match=r"clients = 300: their examples need about .* of memory, and 100 MB are free"
    ):
        synthetic(300, 0, theta=3.0)


@pytest.mark.slow
def test_what_data_take_is_about_what_is_said():
    """The most memory that a process ever had, with many clients and with one."""
    program = (
        "from pagefl.data.synthetic import synthetic; synthetic({}, 0); "
        "print(open('/proc/self/status').read())"
    )

    def most(clients: int) -> int:
        done = subprocess.run(
            [sys.executable, "-c", program.format(clients)], capture_output=True, text=True, check=True
        )
        return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", done.stdout)[1])

    assert 0.4 < (most(1001) - most(1)) / (BYTES * 375 * 1000) < 1.2


def test_batches_are_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "available", lambda: 10**9)
    batches.check_room(16, 200, 1000, 5)
    with pytest.raises(
        UserError, match=r"epochs = 100000: 4000000 batches for each of 16 clients need about 1.536 GB"
    ):
        batches.check_room(16, 200, 100_000, 5)
    with pytest.raises(UserError, match="epochs = 1000000000"):
        pagefl.run(task=task(), epochs=10**9, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_rows_that_fit_nowhere_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(workers, "available_memory", lambda: 2000)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: namedtuple("Usage", "free")(1500))
    rows = workers.SharedRows(tmp_path)
    assert rows([200], torch.float32).shape == (200,)
    assert rows([300], torch.float32).shape == (300,)  # in a file
    with pytest.raises(
        UserError, match=r"need 1.6 kB: memory has room for 200 B of them, and the disk of .* for 1.5 kB"
    ):
        rows([400], torch.float32)
    monkeypatch.setattr(workers, "available_memory", lambda: 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: namedtuple("Usage", "free")(500))
    with pytest.raises(UserError, match=r"the clients' models need .*: memory has room for 0 B of them"):
        pagefl.run(task=task("mlp"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("synthetic-mlp", "hidden"),
        ("shakespeare", "hidden"),
        ("cifar100", "width"),
        ("tiny-imagenet-small", "width"),
    ],
)
@pytest.mark.parametrize("size", [10**6, 10**12])
def test_models_are_measured_before_they_are_made(name, setting, size, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 10**8)
    with pytest.raises(UserError, match=f"task = {name.removesuffix('-small')}: the "):
        specs.make_task({"name": name, setting: size}, 0).fresh_module(0)


@pytest.mark.parametrize("name", [name for name in TASKS if name not in ("pfllib", "flgo", "leaf")])
def test_measuring_a_model_draws_nothing(name):
    """The first weights are those of a module that is made without being measured."""
    made = specs.make_task({"name": name}, 0)
    module = made.fresh_module(3)
    (inner,) = (cell.cell_contents for cell in made.module.__closure__ if callable(cell.cell_contents))
    with rng.torch_stream(3, "initial model"):
        usual = inner()
    assert torch.equal(Layout(module).row(module), Layout(usual).row(usual))


def test_agents_are_measured(monkeypatch):
    """Each has a ring of transitions as long as the run; the server's is as wide as the federation."""
    monkeypatch.setattr(memory, "available", lambda: 10**9)
    learning = Learning(DdpgSettings())
    with pytest.raises(
        UserError, match=r"5000 client agents with 2 inputs need about .* of memory, and 1 GB are free"
    ):
        Learner("client", 5000, 2, 2, 10**5, 0, learning)
    with pytest.raises(
        UserError, match=r"1 server agents with 5000 inputs need about .* of memory, and 1 GB are free"
    ):
        Learner("server", 1, 5000, 5000, 10**5, 0, learning)
