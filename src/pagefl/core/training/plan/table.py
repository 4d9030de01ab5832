"""Turns the stages of a module into a table of operations over one arena: forward, and for training
backward too."""

from typing import Any

import numpy as np
import numpy.typing as npt

from pagefl.core.layout import Layout

from . import kinds as op
from .kinds import OPERATION, SLOTS
from .stages import Stage, stages
from .tiles import fits
from .trace import Maps, Node, Trace

Ranges = npt.NDArray[np.int64]
ALIGNED = 16  # numbers
NOWHERE = -1


class Table:
    """The operations of a batch of up to `capacity` examples."""

    def __init__(self, trace: Trace, layout: Layout, capacity: int, *, training: bool) -> None:
        self.trace, self.layout, self.capacity = trace, layout, capacity
        self._sizes: list[int] = []  # of buffers
        self._rows: list[dict[str, Any]] = []
        self._writes: list[list[tuple[int, int]]] = []  # the columns to which each of them gives a gradient
        self._value: dict[int, int] = {}  # node -> the buffer of its result
        self._gradient: dict[int, int] = {}
        self._first = op.COPY  # how examples come in
        made = list(stages(trace))
        entry = self._enter(made)
        backward = [self._forward(stage, training) for stage in made]
        last = made[-1]
        logits, self.classes = self._value[last.output], trace.nodes[last.output].shape.channels
        if training:
            shape = trace.nodes[last.output].shape
            self._gradient[last.output] = self._buffer(shape.size)
            self._emit(op.LOSS, shape, x=logits, out=self._gradient[last.output])
            for stage, saved in zip(reversed(made), reversed(backward), strict=True):
                self._backward(stage, saved)
        places, self.size = self._placed(keep=(entry["x"], logits))
        self.rows = np.zeros(len(self._rows), OPERATION)
        self.entry = np.zeros(1, OPERATION)[0]
        for row, fields in zip([*self.rows, self.entry], [*self._rows, entry], strict=True):
            for name, value in fields.items():
                row[name] = places[value] if name in SLOTS and value != NOWHERE else value
        self.logits = places[logits]
        self.live = _joined([columns for written in self._writes for columns in written])

    def until(self, columns: slice) -> npt.NDArray[Any]:
        """The operations up to the last one that gives these columns a gradient."""
        wanted = [
            number
            for number, written in enumerate(self._writes)
            if any(start < columns.stop and columns.start < end for start, end in written)
        ]
        return self.rows[: max(wanted, default=-1) + 1]

    def _enter(self, made: list[Stage]) -> dict[str, Any]:
        """How examples come in: as their convolution needs them, or as maps."""
        shape = self.trace.input.shape
        readers = [stage for stage in made if 0 in (stage.input, stage.residual)]
        first = readers[0].node
        if len(readers) > 1 or first is None or first.kind != "conv":
            self._value[0] = self._buffer(shape.size)
            return {"kind": op.COPY, **_sizes(shape), "x": self._value[0]}
        height, width = (size + 2 * pad for size, pad in zip(shape[:2], first.padding, strict=True))
        if fits(first.shape.channels):
            self._value[0] = self._buffer(height * width * shape.channels)
            self._first = op.IMAGES
            return {"kind": op.IMAGES, **_sizes(shape, first), "x": self._value[0]}
        self._value[0] = self._buffer(height * first.kernel[1] * shape.channels * first.shape.width)
        self._first = op.LINES
        line = self._buffer(width + 2 * first.stride[1])
        return {"kind": op.LINES, **_sizes(shape, first), "x": self._value[0], "scratch": line}

    def _forward(self, stage: Stage, training: bool) -> dict[str, int]:
        """Returns the buffers that the way back needs."""
        node, x = stage.node, self._value[stage.input]
        shape = self.trace.nodes[stage.input].shape
        saved = {"x": x, "y": x}
        if node is not None:
            if node.kind == "dropout" and not training:
                self._value[stage.output] = x
                return saved
            shape = node.shape
            saved["y"] = self._buffer(shape.size)
            saved |= self._product(node, self.trace.nodes[stage.input].shape, stage.input, x, saved["y"])
        scaled = stage.norm is not None or stage.bias is not None
        if not scaled and stage.residual is None and not stage.relu and stage.pool is None:
            self._value[stage.output] = saved["y"]
            return saved
        out = stage.pool.shape if stage.pool is not None else shape
        saved["out"] = self._value[stage.output] = self._buffer(out.size)
        saved["stats"] = self._buffer(2 * stage.norm.groups) if stage.norm else NOWHERE
        saved["mask"] = self._buffer(out.size) if stage.pool is not None and training else NOWHERE
        residual = NOWHERE if stage.residual is None else self._value[stage.residual]
        fields: dict[str, Any] = {**self._epilogue(stage), "y": saved["y"], "stats": saved["stats"]}
        fields["scratch"] = self._buffer(2 * shape.channels)
        self._emit(op.MOMENTS if stage.norm else op.SHIFT, shape, **fields)
        fields |= {"out": saved["out"], "residual": residual, "mask": saved["mask"]}
        self._emit(op.EPILOGUE if stage.pool is None else op.POOLED, shape, stage.pool, **fields)
        return saved

    def _product(self, node: Node, shape: Maps, source: int, x: int, y: int) -> dict[str, int]:
        if node.kind in ("conv", "linear"):
            kind, _, _ = self._kinds(node, source)
            everywhere = all(2 * pad < size for pad, size in zip(node.padding, node.kernel, strict=True))
            if kind in (op.CONV, op.TILED) and not everywhere:  # the middle tap does not meet every output
                self._emit(op.ZERO, node.shape, out=y)
            fields: dict[str, Any] = {
                "weight": self._column(node.weight),
                "outputs": node.shape.channels,
                "adds": not everywhere,
            }
            self._emit(kind, shape, node, x=x, y=y, **fields)
        elif node.kind == "mean":
            self._emit(op.MEAN, shape, node, x=x, out=y)
        elif node.kind == "flatten":
            self._emit(op.FLATTEN, shape, x=x, out=y, groups=_order(shape))
        elif node.kind == "embedding":
            self._emit(
                op.EMBED, shape, x=x, out=y, weight=self._column(node.weight), outputs=node.shape.channels
            )
        else:  # dropout
            mask = self._buffer(shape.size)
            self._emit(op.DROP, shape, x=x, out=y, mask=mask, number=node.number)
            return {"mask": mask}
        return {}

    def _kinds(self, node: Node, source: int) -> tuple[int, int, int]:
        """Of a product, its weight's gradient and its input's."""
        if node.kind == "linear":
            return op.LINEAR, op.LINEAR_WEIGHT, op.LINEAR_INPUT
        if source == 0 and self._first == op.IMAGES:
            return op.IMAGES, op.IMAGES_WEIGHT, NOWHERE
        if source == 0 and self._first == op.LINES:
            return op.LINES, op.LINES_WEIGHT, NOWHERE
        if fits(self.trace.nodes[source].shape.channels) and fits(node.shape.channels):
            return op.TILED, op.TILED_WEIGHT, op.TILED_INPUT
        return op.CONV, op.CONV_WEIGHT, op.CONV_INPUT

    def _backward(self, stage: Stage, saved: dict[str, int]) -> None:
        d = self._gradient.get(stage.output)
        if d is None:  # nobody uses this result
            return
        node = stage.node
        shape = node.shape if node is not None else self.trace.nodes[stage.input].shape
        if "out" in saved:
            d = self._epilogue_back(stage, saved, shape, d)
        if node is not None:
            self._product_back(node, stage.input, saved, d)
        else:
            self._give(stage.input, d, shape)
        if stage.residual is not None:
            masked = self._gradient[stage.output]
            self._give(stage.residual, masked, shape, taken=masked == d and node is None)

    def _epilogue_back(self, stage: Stage, saved: dict[str, int], shape: Maps, d: int) -> int:
        """The gradient of the product's result. The residual's is then in the stage's own buffer."""
        fields = self._epilogue(stage)
        names = [stage.norm.weight, stage.norm.bias] if stage.norm else [stage.bias]
        writes = [name for name in names if name is not None]
        if stage.pool is not None:
            full = self._buffer(shape.size)
            scratch = self._buffer(shape.channels)
            pooled: dict[str, Any] = {**fields, "mask": saved["mask"], "scratch": scratch}
            pooled["bias"] = self._column(stage.bias)  # a norm's gets its gradient with the norm
            bias = writes if stage.norm is None else []
            self._emit(op.UNPOOL, shape, stage.pool, d=d, out=full, writes=bias, **pooled)
            if stage.norm is None:
                return full
            d, fields["relu"] = full, 0  # the mask has cut already
        out = self._buffer(shape.size) if stage.norm else NOWHERE
        operands: dict[str, Any] = {"x": saved["out"] if fields["relu"] else NOWHERE, "stats": saved["stats"]}
        operands |= {"y": saved["y"] if stage.norm else NOWHERE, "scratch": self._buffer(3 * shape.channels)}
        self._emit(
            op.NORM_BACK if stage.norm else op.EPILOGUE_BACK,
            shape,
            d=d,
            out=out,
            writes=writes,
            **fields,
            **operands,
        )
        return out if stage.norm else d

    def _product_back(self, node: Node, source: int, saved: dict[str, int], d: int) -> None:
        shape, x = self.trace.nodes[source].shape, saved["x"]
        if node.kind in ("conv", "linear"):
            assert node.weight is not None
            fields: dict[str, Any] = {
                "weight": self._column(node.weight),
                "outputs": node.shape.channels,
                "d": d,
            }
            _, weight, back = self._kinds(node, source)
            self._emit(weight, shape, node, x=x, writes=[node.weight], live=self._taps(node, shape), **fields)
            if source != 0:
                adds = source in self._gradient
                to = self._own(source)
                if node.kind == "conv" and not adds and not _covers(node, shape):
                    self._emit(op.ZERO, shape, out=to)
                    adds = True
                if back == op.TILED_INPUT:  # for the weight that is turned
                    size = node.kernel[0] * node.kernel[1] * shape.channels * node.shape.channels
                    fields["scratch"] = self._buffer(-(-size // self.capacity))
                self._emit(back, shape, node, out=to, adds=adds, **fields)
        elif node.kind == "embedding":
            assert node.weight is not None
            fields = {
                "weight": self._column(node.weight),
                "outputs": node.shape.channels,
                "groups": node.groups,
            }
            self._emit(op.EMBED_BACK, shape, x=x, d=d, writes=[node.weight], **fields)
        elif source == 0:
            return
        elif node.kind == "dropout":
            fresh = self._buffer(shape.size)
            self._emit(op.DROP_BACK, shape, d=d, mask=saved["mask"], out=fresh)
            self._give(source, fresh, shape)
        else:
            adds = source in self._gradient
            kind, order = (op.MEAN_BACK, 1) if node.kind == "mean" else (op.FLATTEN_BACK, _order(shape))
            self._emit(kind, shape, node, d=d, out=self._own(source), adds=adds, groups=order)

    def _give(self, to: int, d: int, shape: Maps, taken: bool = False) -> None:
        """A whole gradient for a result: its buffer is taken over, or added to the one that is there."""
        if to == 0:
            return
        if to in self._gradient:
            self._emit(op.ADD, shape, d=d, out=self._gradient[to])
        elif taken:
            self._emit(op.COPY, shape, d=d, out=self._own(to))
        else:
            self._gradient[to] = d

    def _own(self, number: int) -> int:
        """The buffer of a result's gradient."""
        if number not in self._gradient:
            self._gradient[number] = self._buffer(self.trace.nodes[number].shape.size)
        return self._gradient[number]

    def _epilogue(self, stage: Stage) -> dict[str, Any]:
        norm = stage.norm
        fields: dict[str, Any] = {"relu": stage.relu, "bias": self._column(stage.bias)}
        if norm is not None:
            fields |= {"groups": norm.groups, "number": norm.number}
            fields |= {"weight": self._column(norm.weight), "bias": self._column(norm.bias)}
        return fields

    def _column(self, name: str | None) -> int:
        return NOWHERE if name is None else self.layout.columns[name].start

    def _taps(self, node: Node, shape: Maps) -> list[tuple[int, int]] | None:
        """The columns of those taps of a convolution that meet more than padding."""
        if node.kind != "conv" or node.weight is None:
            return None
        size, start = shape.channels * node.shape.channels, self._column(node.weight)
        high, wide = (
            [any(0 <= o * stride + tap - pad < n for o in range(outs)) for tap in range(kernel)]
            for kernel, stride, pad, n, outs in zip(
                node.kernel, node.stride, node.padding, shape[:2], node.shape[:2], strict=True
            )
        )
        met = [h and w for h in high for w in wide]
        return [(start + tap * size, start + (tap + 1) * size) for tap, meets in enumerate(met) if meets]

    def _emit(
        self,
        kind: int,
        shape: Maps,
        node: Node | None = None,
        *,
        writes: list[str] | None = None,
        live: list[tuple[int, int]] | None = None,
        **fields: Any,
    ) -> None:
        """`writes`: the parameters whose gradients an operation computes; `live`: if it is not all of
        them."""
        if live is None:
            live = [
                (self.layout.columns[name].start, self.layout.columns[name].stop) for name in writes or ()
            ]
        self._writes.append(live)
        slots = dict.fromkeys(SLOTS, NOWHERE)
        self._rows.append({"kind": kind, **_sizes(shape, node), "groups": 1, **slots, **fields})

    def _buffer(self, size: int) -> int:
        """`size`: numbers for each example."""
        self._sizes.append(-(-size * self.capacity // ALIGNED) * ALIGNED)
        return len(self._sizes) - 1

    def _placed(self, keep: tuple[int, ...]) -> tuple[list[int], int]:
        """Where each buffer begins, so that those that are needed at the same time do not overlap."""
        ends = len(self._rows)
        lives: dict[int, tuple[int, int]] = {keep[0]: (0, 0), keep[1]: (ends, ends)}
        for number, fields in enumerate(self._rows):
            for name in SLOTS:
                if (buffer := fields[name]) != NOWHERE:
                    first, last = lives.get(buffer, (number, number))
                    lives[buffer] = min(first, number), max(last, number)
        places, total = [0] * len(self._sizes), 0
        placed: list[tuple[int, int, int, int]] = []  # start, end, first and last operation
        for buffer in sorted(lives, key=lambda b: (lives[b][0], -self._sizes[b])):
            first, last = lives[buffer]
            beside = sorted((at, end) for at, end, f, e in placed if f <= last and first <= e)
            start = 0
            for at, end in beside:
                if start + self._sizes[buffer] <= at:
                    break
                start = max(start, end)
            places[buffer] = start
            placed.append((start, start + self._sizes[buffer], first, last))
            total = max(total, start + self._sizes[buffer])
        unused = [b for b in range(len(self._sizes)) if b not in lives]  # such as the scratch of the entry
        for buffer in unused:
            places[buffer] = total
            total += self._sizes[buffer]
        return places, total


def _sizes(shape: Maps, node: Node | None = None) -> dict[str, int]:
    sizes = {"height": shape.height, "width": shape.width, "inputs": shape.channels}
    if node is not None:
        for name, pair in (("kernel", node.kernel), ("stride", node.stride), ("pad", node.padding)):
            sizes |= {f"{name}_h": pair[0], f"{name}_w": pair[1]}
    return sizes


def _order(shape: Maps) -> int:
    """How flat features are ordered: by position first for texts, by channel first for images."""
    return 1 if shape.sequence else 2


def _covers(node: Node, shape: Maps) -> bool:
    """Whether the middle tap of a convolution meets every position of its input, so that it can set the
    gradient."""
    return node.stride == (1, 1) and node.shape[:2] == shape[:2]


def _joined(ranges: list[tuple[int, int]]) -> Ranges:
    result: list[list[int]] = []
    for start, end in sorted(ranges):
        if result and result[-1][1] == start:
            result[-1][1] = end
        else:
            result.append([start, end])
    return np.array(result, np.int64).reshape(-1, 2)


def rest(live: Ranges, columns: slice) -> Ranges:
    """The columns that are not live."""
    edges = [columns.start, *np.clip(live, columns.start, columns.stop).reshape(-1).tolist(), columns.stop]
    pairs = [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]
    return np.array(pairs, np.int64).reshape(-1, 2)


def within(live: Ranges, columns: slice) -> Ranges:
    cut = np.clip(live, columns.start, columns.stop)
    return cut[cut[:, 0] < cut[:, 1]]
