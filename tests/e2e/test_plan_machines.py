"""A plan on other machines, in other processes and after a kill: the same bits where they are promised."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("plan machines")]  # compiled once
SCRIPT = Path(__file__).with_name("own_images.py")
AVX2 = {
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+sse4.2,+avx,+avx2,+fma,+bmi,+bmi2,+popcnt",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("numba")


def start(cache: Path | None, *hows: dict, **environment: str) -> subprocess.CompletedProcess[str]:
    """Without a PATH, so without a compiler. `cache`: None for the one that all tests share."""
    kept = {name: value for name, value in os.environ.items() if name != "PATH"}
    own = {} if cache is None else {"NUMBA_CACHE_DIR": str(cache), "XDG_CACHE_HOME": str(cache)}
    variables = {**kept, **own, **environment}
    command = [sys.executable, str(SCRIPT), *map(json.dumps, hows)]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=1200, check=False)


def answers(*arguments, **environment: str) -> list[dict]:
    done = start(*arguments, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def compiled(cache):
    """The process that compiles, as on a machine that has no more than AVX2."""
    return answers(cache, {"workers": 1}, {"workers": 2}, {"workers": 3}, **AVX2)


@pytest.fixture(scope="module")
def native():
    """This machine's own code, which other tests have compiled."""
    (answer,) = answers(None, {"workers": 1})
    return answer


def announced(answer: dict) -> bool:
    return any("compiling the plan's operations" in line for line in answer["said"])


def test_any_number_of_workers_gives_the_same_bits(compiled):
    assert len({answer["hash"] for answer in compiled}) == 1
    assert not any("not a faster one" in line for answer in compiled for line in answer["said"])
    assert [announced(answer) for answer in compiled] == [True, False, False]


def test_a_kill_and_a_process_that_loads_the_cache_change_no_bit(compiled, cache, tmp_path):
    out = str(tmp_path / "run")
    assert start(cache, {"out": out, "killed_in": 2}, **AVX2).returncode == -signal.SIGKILL
    resumed, straight = answers(cache, {"out": out, "resumed": True}, {"workers": 1}, **AVX2)
    assert not announced(resumed)
    assert resumed["hash"] == straight["hash"] == compiled[0]["hash"]


def assert_close(answer: dict, other: dict) -> None:
    np.testing.assert_allclose(answer["model"], other["model"], rtol=0, atol=1e-4)


def test_avx2_is_enough(compiled, native):
    assert_close(compiled[0], native)


def test_numpys_blas_takes_the_place_of_torchs(compiled, cache):
    answer, parallel = answers(cache, {"workers": 1, "without_torch": True}, {"workers": 2}, **AVX2)
    assert answer["blas"].startswith("NumPy")
    assert answer["hash"] == parallel["hash"]
    assert_close(answer, compiled[0])


def test_numpys_blas_is_held_to_one_thread():
    """In a process of its own, for NumPy keeps what it is told."""
    code = """
import ctypes, pathlib, numpy
from pagefl.core.training.plan import blas
folder = pathlib.Path(numpy.__file__).parent.parent / "numpy.libs"
library = ctypes.CDLL(str(next(folder.glob("*openblas*"))))
library.scipy_openblas_set_num_threads64_(2)
before = library.scipy_openblas_get_num_threads64_()
print(before, len(list(blas.of_numpy())), library.scipy_openblas_get_num_threads64_())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "1", "1"]
