"""Traces a module: what its forward computes, as a list of nodes. What a plan has no operation for is
refused."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Pair = tuple[int, int]
QUESTIONS = {
    "size",
    "dim",
    "numel",
    "is_floating_point",
    "__len__",
    "stride",
    "is_contiguous",
    "get_device",
    "__get__",
}
SAME = {
    "contiguous",
    "float",
    "to",
    "long",
    "int",
    "type",
    "clone",
}  # type and place; the values stay what they are
VIEWS = {"flatten", "view", "reshape", "unflatten"}


class Unplanned(Exception):
    """The module cannot be planned; the message says why."""


class Maps(NamedTuple):
    """The shape of one example: positions times channels. Flat features are the channels of a single
    position."""

    height: int
    width: int
    channels: int
    flat: bool = False  # [channels] in torch, not [channels, height, width]
    sequence: bool = False  # [height, channels] in torch: text
    tokens: bool = False  # [height] in torch: the text itself

    @property
    def positions(self) -> int:
        return self.height * self.width

    @property
    def size(self) -> int:
        return self.positions * self.channels

    @property
    def in_torch(self) -> tuple[int, ...]:
        if self.tokens:
            return (self.height,)
        if self.sequence:
            return (self.height, self.channels)
        return (self.channels,) if self.flat else (self.channels, self.height, self.width)


@dataclass(frozen=True)
class Node:
    kind: str
    inputs: tuple[int, ...]
    shape: Maps
    weight: str | None = None  # names of parameters
    bias: str | None = None
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    groups: int = 1
    number: float = 0.0  # eps of a norm, chance of a dropout


@dataclass
class Input:
    """How an example enters: x * scale + shift, by channel."""

    shape: Maps
    scale: npt.NDArray[np.float64]
    shift: npt.NDArray[np.float64]


@dataclass
class Trace:
    input: Input
    nodes: list[Node] = field(default_factory=list)  # from the input to the logits

    def agrees(self, other: "Trace") -> bool:
        mine, theirs = self.input, other.input
        same = mine.shape == theirs.shape and self.nodes == other.nodes
        return same and np.array_equal(mine.scale, theirs.scale) and np.array_equal(mine.shift, theirs.shift)


def trace(module: nn.Module, x: Tensor) -> Trace:
    """`x`: a batch of examples. Raises `Unplanned`."""
    tracer = _Tracer(module, x)
    module.train()
    with torch.no_grad(), tracer:
        logits = module(x)
    last = tracer.known.get(id(logits))
    if last is None or not tracer.trace.nodes[last].shape.flat or last == 0:
        raise Unplanned("its answer is not made by operations that a plan has")
    tracer.trace.nodes = _needed(tracer.trace.nodes, last)
    return tracer.trace


def _needed(nodes: list[Node], last: int) -> list[Node]:
    """The nodes that the last one is made of, in their order. A forward may compute more than it answers."""
    needed = {0, last}
    for number in range(last, 0, -1):
        if number in needed:
            needed.update(nodes[number].inputs)
    place = {number: new for new, number in enumerate(sorted(needed))}
    return [replace(nodes[old], inputs=tuple(place[i] for i in nodes[old].inputs)) for old in place]


class _Tracer(TorchFunctionMode):
    """Sees every torch function that a forward calls with the examples, or with what was computed from
    them."""

    def __init__(self, module: nn.Module, x: Tensor) -> None:
        super().__init__()
        self.names = {id(p): name for name, p in module.named_parameters()}
        self.frozen = {name for name, p in module.named_parameters() if not p.requires_grad}
        self.used: set[str] = set()
        self.known = {id(x): 0}  # tensor -> node
        self.weights = set(self.names)  # parameters, and what is computed from them alone
        self.alive: list[Tensor] = [x]  # so that no id is given twice
        shape = _entering(x)
        channels = shape.channels
        self.trace = Trace(Input(shape, np.ones(channels), np.zeros(channels)))
        self.trace.nodes.append(Node("input", (), shape))

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        given = {id(a) for a in (*args, *kwargs.values()) if isinstance(a, Tensor)}
        name = getattr(function, "__name__", str(function))
        if not isinstance(result, Tensor):
            if name in QUESTIONS or not given & (self.known.keys() | self.weights):
                return result
            raise Unplanned(f"a plan has no operation for {name}")
        name = name.strip("_") if name.startswith("__") else name.rstrip("_")
        constant = name == "to" and id(args[0]) not in self.known  # a buffer goes where the examples are
        if constant or not given & self.known.keys():
            if given & self.weights:
                self.weights.add(id(result))
                self.alive.append(result)
            return result
        if result.is_floating_point() and result.dtype != torch.float32:
            raise Unplanned(f"{name} answers in {result.dtype}, not in torch.float32")
        self.known[id(result)] = self._node(name, args, kwargs, result)
        self.alive.append(result)
        return result

    def _node(self, name: str, args: Any, kwargs: dict[str, Any], result: Tensor) -> int:
        if name in SAME:
            return self._same(args[0] if args else None, result)
        if not result.is_floating_point() and name not in VIEWS:
            raise Unplanned(f"{name} answers in whole numbers ({result.dtype}), which may overflow")
        handler = getattr(self, f"_{name}", None)
        if handler is None:
            raise Unplanned(f"a plan has no operation for {name}")
        try:
            found: int = handler(*args, **kwargs)
        except TypeError:  # named otherwise than here, or with more options
            raise Unplanned(f"{name} has options that a plan does not know") from None
        return found

    def _add_node(self, node: Node) -> int:
        self.trace.nodes.append(node)
        return len(self.trace.nodes) - 1

    def _of(self, x: Any) -> tuple[int, Maps]:
        at = self.known.get(id(x))
        if at is None:
            raise Unplanned("an operation gets the examples in an unusual place")
        shape = self.trace.nodes[at].shape
        if tuple(x.shape[1:]) != shape.in_torch:
            raise Unplanned("an operation sees numbers in a shape that a plan does not know")
        return at, shape

    def _same(self, x: Any, result: Tensor) -> int:
        at, _ = self._of(x)
        if torch.promote_types(x.dtype, result.dtype) != result.dtype:
            raise Unplanned(f"numbers are converted from {x.dtype} to {result.dtype}, which may change them")
        if at == 0 and result.is_floating_point():
            self._see_features()
        return at

    def _see_features(self) -> None:
        """Whole numbers that are used as numbers are features, not tokens."""
        entering = self.trace.input
        if not entering.shape.tokens:
            return
        if len(self.trace.nodes) > 1:
            raise Unplanned("the examples are used both as tokens and as numbers")
        length = entering.shape.height
        flat = Maps(1, 1, length, flat=True)
        self.trace.input = Input(flat, np.ones(length), np.zeros(length))
        self.trace.nodes[0] = replace(self.trace.nodes[0], shape=flat)

    def _parameter(self, value: Tensor | None) -> str | None:
        if value is None:
            return None
        name = self.names.get(id(value))
        if name is None:
            raise Unplanned("a weight is computed from parameters, not one of them")
        if name in self.frozen:
            raise Unplanned(f"parameter {name} is frozen")
        if name in self.used:
            raise Unplanned(f"parameter {name} is used twice")
        self.used.add(name)
        return name

    def _conv2d(
        self,
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> int:
        at, shape = self._of(x)
        if groups != 1 or _pair(dilation) != (1, 1) or isinstance(padding, str) or shape.flat or x.dim() != 4:
            raise Unplanned("a convolution has groups, dilation or a padding in words")
        kernel = (weight.shape[2], weight.shape[3])
        stride, padding = _pair(stride), _pair(padding)
        out = _slid(shape, kernel, stride, padding)._replace(channels=weight.shape[0])
        names = self._parameter(weight), self._parameter(bias)
        return self._add_node(Node("conv", (at,), out, *names, kernel, stride, padding))

    def _linear(self, x: Any, weight: Any, bias: Any = None) -> int:
        at, shape = self._of(x)
        if not shape.flat and not shape.sequence:
            raise Unplanned("a linear layer is applied to images that are not flattened")
        out = shape._replace(channels=weight.shape[0])
        return self._add_node(Node("linear", (at,), out, self._parameter(weight), self._parameter(bias)))

    def _embedding(
        self, x: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, norm_type: Any = 2.0,
        scale_grad_by_freq: bool = False, sparse: bool = False,
    ) -> int:  # fmt: skip
        at, shape = self._of(x)
        if at or not shape.tokens or padding_idx is not None or max_norm is not None or scale_grad_by_freq:
            raise Unplanned("an embedding has options that a plan does not know")
        out = Maps(shape.height, 1, weight.shape[1], sequence=True)
        return self._add_node(Node("embedding", (at,), out, self._parameter(weight), groups=weight.shape[0]))

    def _group_norm(
        self, x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
    ) -> int:
        at, shape = self._of(x)
        if shape.sequence or (weight is None) != (bias is None):
            raise Unplanned("a norm has only one of weight and bias, or is applied to a sequence")
        names = self._parameter(weight), self._parameter(bias)
        return self._add_node(Node("norm", (at,), shape, *names, groups=groups, number=eps))

    def _layer_norm(self, x: Any, sizes: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> int:
        _, shape = self._of(x)
        if not shape.flat or tuple(sizes) != (shape.channels,):
            raise Unplanned("a LayerNorm is not over flat features")
        return self._group_norm(x, 1, weight, bias, eps)

    def _relu(self, x: Any, inplace: bool = False) -> int:
        at, shape = self._of(x)
        return self._add_node(Node("relu", (at,), shape))

    def _dropout(self, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> int:
        at, shape = self._of(x)
        if not training or p == 0:
            return at
        if p >= 1:
            raise Unplanned("a dropout drops everything")
        return self._add_node(Node("dropout", (at,), shape, number=p))

    def _max_pool2d(
        self, x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> int:  # fmt: skip
        at, shape = self._of(x)
        if ceil_mode or return_indices or _pair(dilation) != (1, 1) or shape.flat:
            raise Unplanned("a max-pooling has dilation, ceil_mode or indices")
        kernel, stride, padding = _pair(kernel_size), _pair(stride or kernel_size), _pair(padding)
        out = _slid(shape, kernel, stride, padding)
        return self._add_node(Node("maxpool", (at,), out, kernel=kernel, stride=stride, padding=padding))

    def _avg_pool2d(
        self, x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: Any = None,
    ) -> int:  # fmt: skip
        at, shape = self._of(x)
        padding = _pair(padding)
        if (
            ceil_mode
            or divisor_override is not None
            or shape.flat
            or (padding != (0, 0) and not count_include_pad)
        ):
            raise Unplanned("an average-pooling has options that a plan does not know")
        return self._mean_over(at, _pair(kernel_size), _pair(stride or kernel_size), padding)

    def _adaptive_avg_pool2d(self, x: Any, output_size: Any) -> int:
        at, shape = self._of(x)
        sizes = [
            have if want is None else want for want, have in zip(_pair(output_size), shape[:2], strict=True)
        ]
        if shape.flat or shape.height % sizes[0] or shape.width % sizes[1]:
            raise Unplanned("an adaptive pooling has windows of different sizes")
        kernel = (shape.height // sizes[0], shape.width // sizes[1])
        return self._mean_over(at, kernel, kernel, (0, 0))

    def _mean_over(self, at: int, kernel: Pair, stride: Pair, padding: Pair) -> int:
        shape = self.trace.nodes[at].shape
        out = _slid(shape, kernel, stride, padding)
        return (
            at
            if out == shape and kernel == (1, 1)
            else self._add_node(Node("mean", (at,), out, kernel=kernel, stride=stride, padding=padding))
        )

    def _mean(self, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> int:
        at, shape = self._of(x)
        dims = {d % x.dim() for d in ((dim,) if isinstance(dim, int) else dim or ())}
        if dims != ({1} if shape.sequence else {2, 3}) or shape.flat or (keepdim and shape.sequence):
            raise Unplanned("a mean is not over positions")
        pooled = self._mean_over(at, shape[:2], shape[:2], (0, 0))
        return pooled if keepdim else self._seen_as(pooled, Maps(1, 1, shape.channels, flat=True))

    def _flatten(self, x: Any, start_dim: int = 0, end_dim: int = -1) -> int:
        at, shape = self._of(x)
        if start_dim != 1 or end_dim not in (-1, x.dim() - 1):
            raise Unplanned("a flatten is not over all but the first dimension")
        flat = Maps(1, 1, shape.size, flat=True)
        if at == 0:
            if shape.tokens:
                return at
            entering = self.trace.input  # flat features from the start
            repeat = 1 if shape.flat else shape.positions
            scale, shift = entering.scale.repeat(repeat), entering.shift.repeat(repeat)
            if any(0 in node.inputs for node in self.trace.nodes):
                raise Unplanned("the examples are used both flat and as images")
            self.trace.input = Input(flat, scale, shift)
            self.trace.nodes[0] = replace(self.trace.nodes[0], shape=flat)
            return at
        if shape.positions == 1:
            return self._seen_as(at, flat)
        return self._add_node(Node("flatten", (at,), flat))

    def _view(self, x: Any, *sizes: Any) -> int:
        sizes = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
        shape = tuple(x.reshape(sizes).shape)
        if shape[0] != len(x) or sizes[0] not in (len(x), -1):
            raise Unplanned("a view does not keep the examples apart")
        if shape == tuple(x.shape):
            return self._of(x)[0]
        if len(shape) == 4:
            return self._unflatten(x, 1, shape[1:])
        if len(shape) != 2:
            raise Unplanned(f"a view has {len(shape) - 1} dimensions of an example")
        return self._flatten(x, 1)

    _reshape = _view

    def _unflatten(self, x: Any, dim: int, sizes: Any) -> int:
        """Examples that come flat, seen as images."""
        self._see_features()
        at, shape = self._of(x)
        if at != 0 or not shape.flat or dim not in (1, -1) or len(sizes) != 3:
            raise Unplanned("numbers are seen as images in mid-network")
        if len(self.trace.nodes) > 1:
            raise Unplanned("the examples are used both flat and as images")
        channels, height, width = torch.empty(shape.size, device="meta").view(*sizes).shape
        entering = self.trace.input
        scale, shift = (part.reshape(channels, -1) for part in (entering.scale, entering.shift))
        if np.ptp(scale, axis=1).any() or np.ptp(shift, axis=1).any():
            raise Unplanned("the examples are not scaled by channel")
        image = Maps(height, width, channels)
        self.trace.input = Input(image, scale[:, 0], shift[:, 0])
        self.trace.nodes[0] = replace(self.trace.nodes[0], shape=image)
        return 0

    def _seen_as(self, at: int, shape: Maps) -> int:
        """The same numbers in another shape of torch's."""
        return self._add_node(Node("same", (at,), shape))

    def _root(self, at: int) -> int:
        """The node whose numbers these are."""
        node = self.trace.nodes[at]
        return self._root(node.inputs[0]) if node.kind == "same" else at

    def _add(self, x: Any, other: Any, alpha: float = 1) -> int:
        if id(x) in self.known and id(other) in self.known:
            (at, shape), (residual, second) = self._of(x), self._of(other)
            if alpha != 1 or shape != second or 0 in (at, residual) or self._root(at) == self._root(residual):
                raise Unplanned("an addition is not of two maps of the same shape")
            return self._add_node(Node("add", (at, residual), shape))
        return self._scaled(x, other, lambda scale, shift, number: (scale, shift + alpha * number))

    _iadd = _add

    def _sub(self, x: Any, other: Any) -> int:
        return self._scaled(x, other, lambda scale, shift, number: (scale, shift - number))

    def _mul(self, x: Any, other: Any) -> int:
        return self._scaled(x, other, lambda scale, shift, number: (scale * number, shift * number))

    def _div(self, x: Any, other: Any) -> int:
        return self._scaled(x, other, lambda scale, shift, number: (scale / number, shift / number))

    _truediv = _div

    def _scaled(self, x: Any, other: Any, change: Callable[..., tuple[Any, Any]]) -> int:
        """The examples' own normalisation, by channel."""
        if self.known.get(id(x)) != 0 or id(other) in self.known or len(self.trace.nodes) > 1:
            raise Unplanned("numbers are scaled, shifted or multiplied in mid-network")
        if isinstance(other, Tensor) and id(other) in self.weights:
            raise Unplanned("the examples are scaled by a parameter")
        self._see_features()
        entering = self.trace.input
        number = torch.as_tensor(other, dtype=torch.float64)
        wanted = (x.dim() - 1) * [1]
        wanted[0] = -1
        try:
            by_channel = (
                number.expand(1, *([1] * (x.dim() - 1))) if number.numel() == 1 else number.view(*wanted)
            )
            if number.numel() not in (1, entering.shape.channels):
                raise RuntimeError
            if number.numel() > 1 and not torch.equal(
                number.expand(x.shape)[0], by_channel.expand(x.shape[1:])
            ):
                raise RuntimeError
        except RuntimeError:
            raise Unplanned("the examples are not scaled by channel") from None
        values = np.broadcast_to(number.reshape(-1).numpy(), entering.scale.shape)
        entering.scale, entering.shift = change(entering.scale, entering.shift, values)
        return 0


def _entering(x: Tensor) -> Maps:
    if x.dim() == 4:
        return Maps(x.shape[2], x.shape[3], x.shape[1])
    if x.dim() == 2 and x.is_floating_point():
        return Maps(1, 1, x.shape[1], flat=True)
    if x.dim() == 2:
        return Maps(x.shape[1], 1, 1, tokens=True)
    raise Unplanned(f"examples of {x.dim() - 1} dimensions")


def _slid(shape: Maps, kernel: Pair, stride: Pair, padding: Pair) -> Maps:
    """A window that slides over maps."""
    height, width = (
        (n + 2 * p - k) // s + 1 for n, k, s, p in zip(shape[:2], kernel, stride, padding, strict=True)
    )
    return shape._replace(height=height, width=width)


def _pair(value: Any) -> Pair:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[-1]))
