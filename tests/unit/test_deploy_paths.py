"""Any path will do for a federation on this machine: Flower's own parsers read what is written for them."""

import tomllib
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args

from pagefl import UserError
from pagefl.core import memory
from pagefl.deploy import app
from pagefl.deploy.local import Local
from pagefl.experiments import spec as specs

NAMES = [
    'a "b"',
    "it's",
    "é😀",
    "a b=c",
    "x.toml",
    "back\\slash\\n",
    "[/b]",
    "two\nlines",
    "# no comment",
    "''' \"\"\"",
]


def spec_of(clients: int = 2):
    return specs.resolve({"task": {"name": "synthetic", "clients": clients}, "rounds": 1})


@pytest.mark.parametrize("name", NAMES)
def test_a_node_is_told_its_paths(name, tmp_path, monkeypatch):
    (tmp_path / name / "deploy").mkdir(parents=True)
    local = Local(spec_of(), tmp_path / name)
    commands = []
    monkeypatch.setattr(local, "start_process", lambda _, *command: commands.append(command))
    local.start_node(1)
    (told,) = (command[command.index("--node-config") + 1] for command in commands)
    own = tmp_path / name / "deploy"
    expected = {"client": 1, "data": str(own / "data" / "client-1.safetensors"), "state": str(own / "node-1")}
    assert parse_config_args([told]) == expected


@pytest.mark.parametrize("name", NAMES)
def test_a_server_is_told_its_paths(name, tmp_path):
    paths = {"out": f"/{name}", "data": f"/data/{name}", "keys": f"/keys/{name}"}
    where = app.write(spec_of(), tmp_path / "app", **paths)
    config = tomllib.loads((where / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"][
        "config"
    ]
    assert {role: config[role] for role in paths} == paths
    assert app.spec_of(where) == spec_of()


def test_a_path_that_is_not_unicode_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(UserError, match=r"out = .*/\\udcff: expected a path in UTF-8"):
        Local(spec_of(), tmp_path / "\udcff")
    with pytest.raises(UserError, match=r"data = \\udcff: expected a path in UTF-8"):
        app.write(spec_of(), tmp_path / "app", "run", "\udcff", "keys")
    assert not list(tmp_path.iterdir())


def test_processes_that_do_not_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 10**9)
    with pytest.raises(
        UserError, match=r"--nodes 6: their processes need about 3 GB of memory, and 1 GB are free"
    ):
        Local(spec_of(6), tmp_path)
    assert isinstance(Local(spec_of(2), Path(tmp_path)), Local)
