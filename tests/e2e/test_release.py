"""The wheel and the sdist, as a stranger installs them: without extras, terminal and home directory."""

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("release")]
# Packages that only extras bring.
EXTRAS = {
    "flwr",
    "pettingzoo",
    "gymnasium",
    "ray",
    "submitit",
    "tensorboard",
    "mlflow",
    "datasets",
    "IPython",
}
HIDE = f"""
import sys
files = sys.meta_path.pop()
class WithoutExtras:
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {EXTRAS} else files.find_spec(name, path, target)
    def find_distributions(self, *args, **kwargs):
        return files.find_distributions(*args, **kwargs)
sys.meta_path.append(WithoutExtras())
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: building leaves files in the source tree."""
    folder = tmp_path_factory.mktemp("release")
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True)
    for name in listed.stdout.decode().splitlines():
        if name.startswith(("src/", "README", "LICENSE", "pyproject", "CITATION", "CHANGELOG")):
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "source" / name).write_bytes((ROOT / name).read_bytes())
    build = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--outdir",
        str(folder / "dist"),
        str(folder / "source"),
    ]
    subprocess.run(build, check=True, capture_output=True)
    return folder / "dist"


@pytest.fixture(scope="module")
def installed(built: Path) -> Path:
    folder = built.parent / "installed"
    (wheel,) = built.glob("*.whl")
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        str(folder),
    ]
    subprocess.run([*install, str(wheel)], check=True)
    return folder


def python(installed: Path, folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script with the installed package, as a service would: without home, terminal or extras."""
    cache = os.environ.get("NUMBA_CACHE_DIR")
    found = {"PATH": os.environ["PATH"], "PYTHONPATH": str(installed), "HOME": "/dev/null"}
    found |= {"NUMBA_CACHE_DIR": cache} if cache else {}
    return subprocess.run(
        [sys.executable, "-c", HIDE + script],
        cwd=folder,
        env=found,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,
    )


def test_wheel_and_sdist_hold_what_they_should(built):
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    assert wheel.name == f"pagefl-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
    wanted = {
        "pagefl/py.typed",
        "pagefl/data/digits.npz",
        "pagefl/reports/page.js",
        "pagefl/reports/chart.css",
    }
    assert wanted <= names
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "pagefl").rglob("*.py")}
    assert sources <= names
    with tarfile.open(sdist) as opened:
        assert {"LICENSE", "README.md"} <= {name.partition("/")[2] for name in opened.getnames()}
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)], check=True)


def test_it_runs_without_extras_terminal_and_home(installed, tmp_path):
    script = (
        "from pagefl.cli import main\n"
        "import pagefl\n"
        f"assert pagefl.__file__.startswith({str(installed)!r}), pagefl.__file__\n"
        f"assert pagefl.__version__ == {VERSION!r}\n"
        "sys.argv = ['pagefl', 'run', '--task', 'digits', '--rounds', '1', '--epochs', '1']\n"
        "sys.argv += ['--clients', '3', '--out', 'run', '--json', '--set', 'path=rows']\n"
        "sys.argv += ['--set', 'personal.when=never']\n"
        "main()"
    )
    done = python(installed, tmp_path, script)
    assert done.returncode == 0, done.stderr
    assert '"round": 1' in done.stdout
    assert (tmp_path / "run" / "report.html").is_file()


COMMANDS = {
    "rl": "import pagefl; pagefl.environment(task='synthetic')",
    "deploy": "sys.argv = ['pagefl', 'deploy', 'local', 'spec.toml', '--out', 'run']; main()",
    "cluster": "sys.argv = ['pagefl', 'run', '--executor', 'ray', '--out', 'run']; main()",
    "tensorboard": "sys.argv = ['pagefl', 'run', '--track', 'tensorboard', '--out', 'run']; main()",
    "mlflow": "sys.argv = ['pagefl', 'run', '--track', 'mlflow', '--out', 'run']; main()",
}


@pytest.mark.parametrize("extra", COMMANDS)
def test_a_missing_extra_is_named(installed, tmp_path, extra):
    (tmp_path / "spec.toml").write_text('task = "synthetic"\n')
    done = python(installed, tmp_path, f"from pagefl.cli import main\n{COMMANDS[extra]}")
    assert done.returncode != 0
    assert f"pagefl[{extra}]" in done.stderr.splitlines()[-1], done.stderr
    assert not (tmp_path / "run").exists()
