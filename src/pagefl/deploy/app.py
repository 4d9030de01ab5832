"""Writes a Flower app: a folder for `flwr run`, with the complete spec in it."""

import tomllib
from importlib.metadata import version
from pathlib import Path
from tempfile import mkdtemp

import tomli_w

from pagefl.core.errors import UserError
from pagefl.experiments.spec import RunSpec, of_text


def write(spec: RunSpec, folder: Path, out: str, data: str, keys: str) -> Path:
    """`out`, `data` and `keys`: paths on the server's machine, of the run, of the server's examples and of
    the clients' public keys."""
    for name, path in (("run", out), ("data", data), ("keys", keys)):
        check_path(name, path)
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"out = {folder}: the folder is not empty; choose another")
    folder.parent.mkdir(parents=True, exist_ok=True)
    final, folder = folder, Path(mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    module = folder / "federation"
    module.mkdir(parents=True)
    (module / "__init__.py").write_text("")
    for side in ("client", "server"):  # Flower needs an assignment to `app`
        (module / f"{side}.py").write_text(f"from pagefl.deploy import {side}_app\n\napp = {side}_app.app\n")
    about = {
        "project": {
            "name": "pagefl-federation",
            "version": "1.0.0",
            "description": f"{spec.label} on {spec.task['name']}, {spec.task['clients']} clients",
            "license": "Apache-2.0",
            "dependencies": [f"pagefl[deploy]=={version('pagefl')}"],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "pagefl",
                    "components": {
                        "serverapp": "federation.server:app",
                        "clientapp": "federation.client:app",
                    },
                    "config": {"spec": spec.toml(), "out": out, "data": data, "keys": keys},
                }
            }
        },
    }
    (folder / "pyproject.toml").write_text(tomli_w.dumps(about, multiline_strings=True), encoding="utf-8")
    folder.replace(final)  # the whole folder, or nothing
    return final


def check_path(name: str, path: str) -> None:
    """Raise unless the path is Unicode. Flower passes it on in TOML and in messages."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UserError(f"{name} = {path}: expected a path in UTF-8") from None


def spec_of(folder: Path) -> RunSpec:
    """The spec that an app was written for."""
    about = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    return of_text(about["tool"]["flwr"]["app"]["config"]["spec"])
