"""Unpickles arrays and plain values. Anything else is refused by name and never run.

A pickle is a program. Here it can only call stand-ins for the functions with which NumPy rebuilds arrays of
numbers.
"""

import io
import math
import pickle
import pickletools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pagefl.core.errors import UserError

KINDS = {f"{kind}{size}" for kind in "iuf" for size in (1, 2, 4, 8)} - {"f1"} | {"b1"}
DIMENSIONS = 8
NUMPY = ("numpy.core", "numpy._core")  # NumPy 1 and 2
OPERATIONS = 10_000  # of a stranger's pickle; a dict of two arrays takes about a hundred
# What a pickle of dicts, arrays, numbers, bytes and text is made of. Others, such as those that make objects,
# read files or take any amount of memory, are not needed.
NAMES = (
    "PROTO FRAME STOP MARK GLOBAL STACK_GLOBAL REDUCE BUILD MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET "
    "EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS NONE "
    "NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT SHORT_BINUNICODE BINUNICODE BINUNICODE8 "
    "SHORT_BINBYTES BINBYTES BINBYTES8 BYTEARRAY8"
)
PLAIN = set(NAMES.split())


def unpickle(content: bytes, name: str) -> Any:
    """The value, with arrays in place of NumPy's constructors. `name`: what an error calls the file."""
    try:
        return _plain(_ArraysOnly(io.BytesIO(content), encoding="bytes").load())
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    except Exception as error:  # a damaged pickle can raise anything
        raise UserError(
            f"{name} cannot be unpickled: {error or type(error).__name__}; it is damaged, get it again"
        ) from error


def unpickle_foreign(content: bytes, name: str) -> Any:
    """`unpickle` for a file whose checksum nobody knows: its operations are checked first."""
    try:
        for number, (operation, argument, _) in enumerate(pickletools.genops(content)):
            if operation.name not in PLAIN:
                raise UserError(
                    f"{name}: its pickle uses {operation.name}, which arrays in a dict do not need; get "
                    "it again"
                )
            beyond = (
                operation.name == "LONG_BINPUT" and (argument or 0) > number
            )  # it would make a list as long
            if beyond or number >= OPERATIONS:
                raise UserError(
                    f"{name}: its pickle has more than {OPERATIONS} operations, or says so; expected a dict "
                    "of arrays"
                )
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{name} cannot be unpickled: {error or type(error).__name__}; it is damaged, get it again"
        ) from error
    return unpickle(content, name)


class _DType(NamedTuple):
    code: Any
    align: Any = None
    copy: Any = None

    def __setstate__(self, state: object) -> None:
        """The byte order. NumPy writes the machine's, and only that of all usual machines is read."""
        if isinstance(state, tuple) and len(state) > 1 and state[1] in (">", b">"):
            raise UserError("it holds an array in big-endian byte order; expected little-endian")

    @property
    def kind(self) -> str:
        return self.code.decode("latin-1") if isinstance(self.code, bytes) else str(self.code)


class _Array:
    """Replaces NumPy's array, whose constructors a malicious pickle could misuse."""

    value: Any = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[object, tuple[int, ...], _DType, bool, Any]) -> None:
        _, shape, dtype, fortran, raw = state
        if isinstance(dtype, _DType) and dtype.kind in ("O", "O8") and shape == () and type(raw) is list:
            (self.value,) = raw  # a single object, as np.save stores a dict
        else:
            self.value = _numbers(raw, dtype, shape, "F" if fortran else "C")


def _numbers(raw: Any, dtype: Any, shape: Any, order: Any = "C") -> npt.NDArray[Any]:
    if not isinstance(dtype, _DType) or dtype.kind not in KINDS or not isinstance(raw, bytes | bytearray):
        raise UserError("it holds an array of something else than numbers, which is not built")
    sizes = shape if type(shape) is tuple and len(shape) <= DIMENSIONS else (-1,)
    if not all(type(size) is int and size >= 0 for size in sizes) or order not in ("C", "F"):
        raise UserError("it holds an array whose shape is no shape")
    kind = np.dtype(f"<{dtype.kind}")
    if math.prod(sizes) * kind.itemsize != len(raw):
        raise UserError(
            f"it holds an array of shape {list(sizes)} in {kind} with {len(raw)} bytes; it is damaged"
        )
    return np.frombuffer(raw, kind).reshape(sizes, order=order)


def _from_buffer(raw: Any, dtype: Any, shape: Any, order: Any = "C", axes: Any = None) -> _Array:
    made = _Array()
    made.value = _numbers(raw, dtype, shape, order if axes is None else "K")
    return made


def _scalar(dtype: Any, raw: Any) -> Any:
    return _numbers(raw, dtype, ())[()]


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        home, _, part = module.rpartition(".")
        stand_ins: dict[tuple[str, str], Callable[..., Any]] = {
            ("multiarray", "_reconstruct"): lambda *_: _Array(),
            ("multiarray", "scalar"): lambda *of: _scalar(*of),
            ("numeric", "_frombuffer"): lambda *of: _from_buffer(*of),
        }
        if home in NUMPY and (part, name) in stand_ins:
            return stand_ins[part, name]
        if (module, name) == ("numpy", "dtype"):
            return _DType
        if (module, name) == ("numpy", "ndarray"):
            return None  # only used as an argument of _reconstruct
        raise UserError(
            f"it asks for {module}.{name}: only arrays, lists, dicts and bytes are built; get the "
            "original file"
        )


def _plain(value: Any) -> Any:
    """Arrays at the top, or in a dict at the top, which may itself be in an array."""
    value = value.value if isinstance(value, _Array) else value
    if isinstance(value, dict):
        return {key: part.value if isinstance(part, _Array) else part for key, part in value.items()}
    return value
