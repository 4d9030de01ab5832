"""Reads one client's examples into two tensors (x, y), or raises an error of one sentence."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import IterableDataset

from pagefl.core import summary
from pagefl.core.errors import UserError

Pair = tuple[Tensor, Tensor]
EXPECTED = "expected (x, y), or a map-style Dataset whose items are (x, y)"


def read(who: str, given: object) -> Pair:
    """Read (x, y) as arrays, tensors, data frames or lists, or a map-style Dataset of them.

    `who` is named in errors. float64 stays float64, other floats become float32. Bytes stay bytes, other
    integers become int64, booleans become float32.
    """
    values = given if isinstance(given, tuple | list) and len(given) == 2 else _items(who, given)
    x, y = (_numbers(f"{who}: {side}", value) for side, value in zip("xy", values, strict=True))
    if not x.dim() or not y.dim() or len(x) != len(y):
        raise UserError(
            f"{who}: x has shape {list(x.shape)} and y has shape {list(y.shape)}; expected n examples and "
            "n labels"
        )
    if not len(y) or not x.numel():
        raise UserError(
            f"{who}: x has shape {list(x.shape)}, which holds no number; expected at least one example"
        )
    return _examples(who, x), _labels(who, y)


def agree(named: Iterable[tuple[str, Tensor]]) -> None:
    """Check that all examples have one shape and one kind: floats, bytes or integers."""
    first_who, first = "", torch.empty(0)
    for who, x in named:
        if not first_who:
            first_who, first = who, x
        kinds = [part.is_floating_point() or part.dtype for part in (x, first)]
        if x.shape[1:] != first.shape[1:] or kinds[0] != kinds[1]:
            found, other = summary.examples(x), summary.examples(first)
            raise UserError(
                f"{who}: examples are {found}, but those of {first_who} are {other}; they must agree"
            )


def image_bytes(where: str, images: Sequence[Image.Image]) -> Tensor:
    """Images as bytes [n, channels, height, width]: one channel if all are grey, three otherwise."""
    sizes = {image.size for image in images}
    if len(sizes) > 1:
        raise UserError(
            f"{where} has images of {len(sizes)} sizes, as {sorted(sizes)[:2]}; expected one size for all"
        )
    odd = next((image.mode for image in images if image.mode.startswith(("I", "F"))), None)
    if odd:
        raise UserError(f"{where} has an image of mode {odd}; expected images of 8 bits a channel")
    mode = "L" if all(image.mode in ("1", "L", "LA") for image in images) else "RGB"
    data = b"".join(image.convert(mode).tobytes() for image in images)
    pixels = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return pixels.view(len(images), images[0].height, images[0].width, -1).permute(0, 3, 1, 2).contiguous()


def _items(who: str, given: object) -> tuple[list[object], list[object]]:
    """Read every item of a Dataset once, so that random transforms are applied once."""
    known = (str, bytes, Mapping, tuple, list, Tensor, np.ndarray, IterableDataset)
    if isinstance(given, known) or not (hasattr(given, "__getitem__") and hasattr(given, "__len__")):
        raise UserError(f"{who}: found a {type(given).__name__}; {EXPECTED}")
    x: list[object] = []
    y: list[object] = []
    for i in range(len(given)):
        try:
            item = given[i]
        except Exception as error:  # a user's own __getitem__ may raise anything
            raise UserError(
                f"{who}: example {i} cannot be read ({type(error).__name__}: {_short(error)}); {EXPECTED}"
            ) from error
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise UserError(f"{who}: example {i} is a {type(item).__name__}; {EXPECTED}")
        x.append(item[0])
        y.append(item[1])
    return x, y


def _numbers(where: str, value: object) -> Tensor:
    try:
        array = _array(where, value)
        if array.dtype.kind not in "biuf":
            kind = {"O": "objects", "U": "text", "S": "text", "c": "complex numbers"}.get(
                array.dtype.kind, str(array.dtype)
            )
            raise UserError(f"{where} holds {kind}; expected an array of real numbers")
        if array.dtype.kind == "u" and array.size and int(array.max()) >= 2**63:
            raise UserError(f"{where} has {array.max()}; expected whole numbers below 2**63")
        kinds = {"b": np.bool_, "u": np.uint8 if array.itemsize == 1 else np.int64, "i": np.int64}
        fraction = np.float64 if array.itemsize >= 8 else np.float32
        # torch needs native byte order, contiguous values and writable memory.
        return torch.from_numpy(np.require(array, kinds.get(array.dtype.kind, fraction), ["C", "W"]))
    except UserError:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UserError(f"{where} is not an array of numbers ({_short(error)})") from error


def _array(where: str, value: object) -> npt.NDArray[Any]:
    if isinstance(value, list | tuple) and value:
        if all(isinstance(item, Image.Image) for item in value):
            value = image_bytes(where, value)
        elif isinstance(value[0], Tensor):
            value = torch.stack([torch.as_tensor(item) for item in value])
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_quantized or value.is_nested or value.is_meta:
            raise UserError(
                f"{where} is a tensor of layout {value.layout} on {value.device}; expected a dense one "
                "with values"
            )
        value = value.detach().cpu()
        return (value.float() if value.dtype in (torch.float16, torch.bfloat16) else value).numpy()
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise UserError(f"{where} has masked values; expected all of them")
    return np.asarray(value)


def _examples(who: str, x: Tensor) -> Tensor:
    if x.is_floating_point() and not bool(x.isfinite().all()):
        bad = int((~x.isfinite()).nonzero()[0, 0])
        raise UserError(f"{who}: x is NaN or infinite in example {bad}; every value must be finite")
    return x.float() if x.dtype == torch.bool else x


def _labels(who: str, y: Tensor) -> Tensor:
    if y.dim() != 1:
        raise UserError(
            f"{who}: y has shape {list(y.shape)}; expected one label for each example, [{len(y)}]"
        )
    if y.is_floating_point():
        raise UserError(
            f"{who}: y holds {str(y.dtype).removeprefix('torch.')} values; expected whole-number labels "
            "from 0"
        )
    y = y.long()
    if int(y.min()) < 0:
        bad = int((y < 0).nonzero()[0, 0])
        raise UserError(f"{who}: y has label {int(y[bad])} in example {bad}; expected labels from 0")
    return y


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
