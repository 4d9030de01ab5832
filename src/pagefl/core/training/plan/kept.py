"""Functions that numba compiles one by one and keeps in its cache, so that a plan compiles only what it
uses. They call each other by their addresses: numba would compile what it calls by name into every caller.
"""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

from numba import from_dtype, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from pagefl.core import rng

from .kinds import OPERATION, Work

NUMBERS = types.float32[::1]
WORK = types.NamedTuple(
    (types.int64, NUMBERS, NUMBERS, NUMBERS, types.int64[::1], NUMBERS, types.uint64), Work
)
SIGNATURE = types.none(from_dtype(OPERATION), WORK)


def sources() -> list[Path]:
    """The files whose functions are compiled."""
    here = Path(__file__).parent
    return [*sorted(here.glob("*.py")), here.parent / "simd.py", Path(rng.__file__)]


def digest(files: Iterable[Path]) -> str:
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


VERSION = digest(sources())


def named(function: Any, version: str = VERSION) -> Any:
    """numba's cache knows the date of one file alone, but also a function's name: code of other sources is
    not taken for this one's."""
    function.__qualname__ = f"{function.__name__}_{version[:16]}"
    return function


def operation(function: Any) -> Any:
    """An operation of a plan: a function of its row in the table, and of the work."""
    keep = njit(cache=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
    return keep(named(function))


def is_kept(function: Any) -> bool:
    """Whether a function lies in the cache, so that it is quickly there."""
    return any(Path(function.stats.cache_path or ".").glob(f"*.{function.__qualname__}-*.nbi"))


def address(function: Any) -> int:
    """Of an operation's code. It is compiled, or read from the cache."""
    result = function.get_compile_result(SIGNATURE)
    return int(result.library.get_pointer_to_function(result.fndesc.llvm_func_name))


@intrinsic
def call(typing, address, op, work):
    """Call the operation whose code begins at an address."""

    def code(context, builder, signature, args):
        convention, kinds = context.call_conv, SIGNATURE.args
        function = builder.inttoptr(
            args[0], convention.get_function_type(SIGNATURE.return_type, kinds).as_pointer()
        )
        status, _ = convention.call_function(builder, function, SIGNATURE.return_type, kinds, args[1:])
        with cgutils.if_unlikely(builder, status.is_error):
            convention.return_status_propagate(builder, status)
        return context.get_dummy_value()

    return types.none(types.intp, *SIGNATURE.args), code
