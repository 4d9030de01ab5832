"""sgemm as a function of compiled code: the one in torch's CPU library, or else NumPy's.

MKL, which torch has, uses the full width of AVX-512 on Intel's processors alone. On others NumPy's OpenBLAS
can: its kernels for Intel's Skylake are twice as fast on AMD's Zen 5.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

SYMBOL = "pagefl_sgemm"
WIDE = "SkylakeX"  # OpenBLAS's name of its kernels for AVX-512
WHEN_LOADED = {"OPENBLAS_CORETYPE": WIDE, "OPENBLAS_NUM_THREADS": "1"}  # what it reads then
# A function that only compiled code calls. What calls it is compiled with it, and lies in the cache with it.
part = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)


def of_torch() -> Iterator[tuple[str, object]]:
    """Torch is built with MKL or OpenBLAS on most machines. Its thread count is torch's own."""
    for file in Path(torch.__file__).parent.glob("lib/*torch_cpu.*"):
        if function := getattr(_library(file), "sgemm_", None):
            yield f"torch {torch.__version__}", function


def of_numpy() -> Iterator[tuple[str, object]]:
    """OpenBLAS as NumPy's wheels have it. It would start threads of its own, so it is held to one."""
    for function in _openblas(_library):
        yield f"NumPy {np.__version__}", function


def of_numpy_in_full_width() -> Iterator[tuple[str, object]]:
    """The same with kernels for AVX-512, on processors that have it and are not Intel's."""
    if torch.backends.cpu.get_cpu_capability() == "AVX512" and "AuthenticAMD" in _processor():
        for function in _openblas(_copy):
            yield f"NumPy {np.__version__} with {WIDE}", function


def bind(*sources: Iterator[tuple[str, object]]) -> str | None:
    """Make the first sgemm that is found callable. Returns whose it is, which decides the last bits of
    results."""
    for source in sources:
        for name, function in source:
            address = ctypes.cast(function, ctypes.c_void_p).value
            binding.add_symbol(SYMBOL, address)
            return name
    return None


def _openblas(load: Callable[[Path], ctypes.CDLL | None]) -> Iterator[object]:
    package = Path(np.__file__).parent
    for file in [*package.parent.glob("numpy.libs/*openblas*"), *package.glob(".dylibs/*openblas*")]:
        library = load(file)
        for fortran, c in (("_64_", "64_"), ("_", "")):  # how names end
            function = getattr(library, f"scipy_sgemm{fortran}", None)
            # Of the two functions the one for C: Fortran's takes an address.
            hold = getattr(library, f"scipy_openblas_set_num_threads{c}", None)
            if function and hold:
                hold(1)
                yield function


def _library(file: Path) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(str(file))
    except OSError:
        return None


def _copy(file: Path) -> ctypes.CDLL | None:
    """A library chooses its kernels when it is loaded, and NumPy has loaded its own: so this is another one,
    in memory."""
    try:
        with open(os.memfd_create(file.name), "wb") as copy:
            copy.write(file.read_bytes())
            copy.flush()  # all of it, or an error: what is cut off must not be loaded
            return _loaded_wide(Path(f"/proc/self/fd/{copy.fileno()}"))
    except OSError:  # no room
        return None


def _loaded_wide(file: Path) -> ctypes.CDLL | None:
    kept = dict(os.environ)
    os.environ.update(WHEN_LOADED)
    try:
        return _library(file)
    finally:
        for name in WHEN_LOADED:
            del os.environ[name]
        os.environ.update(kept)


def _processor() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


@intrinsic
def gemm(typing, ta, tb, m, n, k, a, lda, b, ldb, beta, c, ldc):
    """C[m, n] = A[m, k] B[k, n] + beta C, all row by row; a, b and c are addresses, ta and tb say what is
    turned."""
    whole, place = types.int64, types.uintp
    signature = types.void(
        whole, whole, whole, whole, whole, place, whole, place, whole, types.float32, place, whole
    )

    def code(context, builder, signature, args):
        ta, tb, m, n, k, a, lda, b, ldb, beta, c, ldc = args
        byte, pointer = ir.IntType(8), ir.IntType(8).as_pointer()

        def slot(value):
            """Fortran takes addresses. A library with 32-bit integers reads the lower half of these 64
            bits."""
            place = cgutils.alloca_once(builder, value.type)
            builder.store(value, place)
            return builder.bitcast(place, pointer)

        def letter(flag):
            turned = builder.icmp_signed("!=", flag, ir.Constant(flag.type, 0))
            return slot(builder.select(turned, ir.Constant(byte, ord("T")), ir.Constant(byte, ord("N"))))

        kind = ir.FunctionType(ir.VoidType(), [pointer] * 13)
        function = cgutils.get_or_insert_function(builder.module, kind, SYMBOL)
        one = slot(ir.Constant(ir.FloatType(), 1.0))
        places = [builder.inttoptr(value, pointer) for value in (a, b, c)]
        sizes = [slot(value) for value in (n, m, k, ldb, lda, ldc)]
        # Fortran's columns are our rows, so C = A B is computed as C^T = B^T A^T.
        scaled = (one, places[1], sizes[3], places[0], sizes[4], slot(beta), places[2], sizes[5])
        builder.call(function, [letter(tb), letter(ta), *sizes[:3], *scaled])
        return context.get_dummy_value()

    return signature, code


PROVIDER = bind(of_numpy_in_full_width(), of_torch(), of_numpy())
