"""Which sgemm plans use, and that the copy of OpenBLAS is right and NumPy's own stays as it is."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pagefl.core.training.plan import blas

wide = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512" or not Path("/proc/self/fd").exists(),
    reason="needs AVX-512, and Linux",
)


def multiplied(sgemm, a, b):
    """Fortran's columns are rows here, so B A is asked for. Arguments are addresses of 64-bit integers."""
    (m, k), n = a.shape, b.shape[1]
    c = np.zeros((m, n), np.float32)
    n, m, k = (ctypes.byref(ctypes.c_int64(size)) for size in (n, m, k))
    one, zero = (ctypes.byref(ctypes.c_float(value)) for value in (1.0, 0.0))
    keep = ctypes.byref(ctypes.c_char(b"N"))
    at_a, at_b, at_c = (ctypes.c_void_p(array.ctypes.data) for array in (a, b, c))
    sgemm(keep, keep, n, m, k, one, at_b, n, at_a, k, zero, at_c, n)
    return c


def kernels(library):
    named = library.scipy_openblas_get_corename64_
    named.restype = ctypes.c_char_p
    return named()


@wide
def test_openblas_in_full_width(monkeypatch):
    monkeypatch.setattr(blas, "_processor", lambda: "vendor_id : AuthenticAMD")
    (file,) = (Path(np.__file__).parents[1] / "numpy.libs").glob("*openblas*")
    own, before = kernels(ctypes.CDLL(str(file))), dict(os.environ)
    ((name, sgemm),) = blas.of_numpy_in_full_width()
    assert name == f"NumPy {np.__version__} with SkylakeX"
    assert kernels(blas._copy(file)) == b"SkylakeX"
    assert kernels(ctypes.CDLL(str(file))) == own
    assert dict(os.environ) == before
    rng = np.random.default_rng(0)
    for m, k, n in ((1, 1, 1), (33, 257, 65), (512, 64, 10)):
        a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in ((m, k), (k, n)))
        exact = a.astype(np.float64) @ b
        np.testing.assert_allclose(multiplied(sgemm, a, b), exact, rtol=0, atol=1e-6 * k)


@wide
def test_no_room_for_a_copy():
    """In a process of its own, for the limit stays."""
    code = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
from pagefl.core.training.plan import blas
blas._processor = lambda: "AuthenticAMD"
print(len(list(blas.of_numpy_in_full_width())), blas.PROVIDER.startswith("torch"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "True"]


def test_intels_processors_keep_mkl(monkeypatch):
    monkeypatch.setattr(blas, "_processor", lambda: "vendor_id : GenuineIntel")
    assert not list(blas.of_numpy_in_full_width())
