"""Where compiled code is kept if neither the package's folder nor a home can be written to."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pagefl.core import caches


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As a service runs: no home, and a package that belongs to somebody else."""
    monkeypatch.delenv(caches.NUMBA, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_usual_places_are_left_alone(service, monkeypatch, tmp_path):
    caches.keep_compiled_code(tmp_path)  # beside the package
    assert caches.NUMBA not in os.environ
    monkeypatch.setenv("HOME", str(tmp_path))
    caches.keep_compiled_code(Path("/dev/null"))
    assert caches.NUMBA not in os.environ
    assert caches.user_cache() == tmp_path / ".cache"


def test_without_them_a_folder_of_this_user_alone(service):
    caches.keep_compiled_code(Path("/dev/null"))
    folder = Path(os.environ[caches.NUMBA])
    assert folder == service / f"pagefl-{os.getuid()}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    del os.environ[caches.NUMBA]
    caches.keep_compiled_code(Path("/dev/null"))
    assert os.environ[caches.NUMBA] == str(folder)  # so that nothing is compiled twice


def test_a_folder_that_others_can_write_to_is_not_trusted(service):
    (service / f"pagefl-{os.getuid()}").mkdir()
    (service / f"pagefl-{os.getuid()}").chmod(0o777)
    caches.keep_compiled_code(Path("/dev/null"))
    folder = Path(os.environ[caches.NUMBA])
    assert folder.name != f"pagefl-{os.getuid()}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_nothing_heavy_is_imported_for_it():
    script = "import sys, pagefl; assert not {'torch', 'numba', 'numpy'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", script], check=True)
