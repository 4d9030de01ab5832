"""PlanModel: a module's local SGD as a table of compiled operations over sgemm."""

from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call

from pagefl.core.arrays import Floats
from pagefl.core.errors import UserError
from pagefl.core.evaluate import Scores, cross_entropy, means
from pagefl.core.examples import Examples, tokens_fit

from ..descent import Batch, Descended, Descent
from ..model import Model, only
from . import blas, loops
from .kept import is_kept
from .loops import Plan, Steps
from .operations import addresses, are_kept
from .table import Ranges, Table, rest, within
from .trace import Trace, Unplanned, trace

EVALUATED = 32  # examples at a time
MOST = 128  # examples of one batch; larger ones are taken in parts
CHECKED = 4  # examples on which a plan is compared with autograd
WAVE = 9973  # weights; a prime, so that no two channels or taps get the same wave
PHASES = (0.0, 1.0, 2.0)  # of the wave: so many points are tried
ROUNDING = 1e-3  # far above float32's, far below what a wrong plan shows
Row = npt.NDArray[np.float32]
NOTHING, NOWHERE = np.zeros(0, np.float32), np.zeros(0)
ZERO, NO_COLUMNS = np.float32(0), np.zeros((0, 2), np.int64)
# no step at all
STILL = Steps(ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, NOTHING, NOTHING, NOTHING, 1, NO_COLUMNS, 0)


class PlanModel(Model):
    """Networks of convolutions, norms, poolings and dense layers, as their own forward shows them."""

    path = "plan"
    chunk = 1

    def __init__(self, module: nn.Module, x: Tensor) -> None:
        """`x`: a batch of examples. Raises `Unplanned` if the module computes what a plan cannot."""
        super().__init__(module)
        if blas.PROVIDER is None:
            raise Unplanned("no sgemm was found in torch or NumPy")
        if self.layout.dtype != torch.float32:
            raise Unplanned(f"its weights are {self.layout.dtype}, not torch.float32")
        self.trace: Trace = trace(module, x)
        entering = self.trace.input
        if not np.all(entering.scale) or not np.isfinite([entering.scale, entering.shift]).all():
            raise Unplanned("the examples are multiplied by zero or divided by it")
        self._centre = (-entering.shift / entering.scale).astype(np.float32)
        self._scale = entering.scale.astype(np.float32)
        sizes = [node.groups for node in self.trace.nodes if node.kind == "embedding"]
        self._tokens = min(sizes, default=None)  # a text has no other ones
        self._shape = x.shape[1:]
        self._seen = {x.dtype}  # types of examples that the trace holds for
        self._tables: dict[bool, Table] = {}
        self._memory: Row | None = None

    @property
    def arithmetic(self) -> str:
        return f"plan, sgemm of {blas.PROVIDER}"

    def logits(self, rows: Tensor, x: Tensor) -> Tensor:
        table = self._table(EVALUATED, training=False)
        result = torch.empty(*x.shape[:2], table.classes)
        for row, own, answer in zip(rows, x, result, strict=True):
            for start in range(0, len(own), EVALUATED):
                part = own[start : start + EVALUATED]
                self._run(loops.EVALUATE, table, row, part, torch.zeros(len(part), dtype=torch.long))
                found = self._arena(table)[table.logits : table.logits + len(part) * table.classes]
                answer[start : start + EVALUATED] = torch.from_numpy(found.reshape(len(part), table.classes))
        return result

    def gradient(self, rows: Tensor, batch: Batch, columns: slice | None = None) -> Tensor:
        result = torch.zeros_like(rows)
        for i, row in enumerate(rows):
            real = batch.weight[i] > 0
            x, y = batch.x[i][real], batch.y[i][real]
            offset = NOTHING if batch.offset is None else _numbers(batch.offset[i])
            for start in range(0, len(y), MOST):
                part = slice(start, start + MOST)
                table = self._table(len(y[part]), training=True)
                self._run(loops.DIFFERENTIATE, table, row, x[part], y[part], columns=columns, offset=offset)
                found, share = torch.from_numpy(self._gradient), len(y[part]) / len(y)
                if start == 0:
                    torch.mul(found, share, out=result[i])
                else:
                    result[i] += found * share
        return only(result, columns)

    def score(self, rows: Tensor, examples: Examples, owners: Tensor) -> Scores:
        table = self._table(EVALUATED, training=False)
        starts, sizes = examples.starts[owners].numpy(), examples.sizes[owners].numpy()
        ends = sizes.cumsum()
        if len(rows) == 1:  # owners that lie side by side are evaluated in one go
            cuts = np.flatnonzero(np.r_[True, starts[1:] != starts[:-1] + sizes[:-1], True])
            parts = [(0, starts[a], ends[a] - sizes[a], ends[b - 1]) for a, b in pairwise(cuts)]
        else:
            parts = [(i, starts[i], ends[i] - sizes[i], ends[i]) for i in range(len(starts))]
        losses, hits = (np.empty(int(sizes.sum())) for _ in range(2))
        for row, start, first, last in parts:
            own = slice(int(start), int(start + last - first))
            found = losses[first:last], hits[first:last]
            self._run(loops.EVALUATE, table, rows[row], examples.x[own], examples.y[own], found=found)
        return Scores(*(means(torch.from_numpy(part), torch.from_numpy(sizes)) for part in (losses, hits)))

    def descend(self, rows: Tensor, descent: Descent) -> Descended:
        options, size = descent.options, descent.batches.positions.shape[2]
        unplanned = options.direction is not None or options.top is not None or descent.optimiser != "sgd"
        if unplanned or size > MOST:
            return super().descend(rows, descent)  # step by step, with the plan's gradients
        table, columns = self._table(size, training=True), options.columns or slice(0, self.layout.width)
        live, dead = within(table.live, columns), rest(table.live, columns)
        plan, arena = self._plan(table, options.columns), self._arena(table)
        fresh = torch.empty_like(rows)
        anchor = None if options.anchor is None else options.anchor.clone()
        everywhere = anchor is not None or options.shift is not None or descent.momentum != 0
        for i in range(len(rows)):
            count = int(descent.batches.steps[i]) * options.repeats
            keep = (1 - float(np.float32(descent.lr[i])) * float(np.float32(descent.weight_decay))) ** count
            _decayed(rows[i], NO_COLUMNS if everywhere else dead, keep, fresh[i])
            steps = Steps(
                lr=np.float32(descent.lr[i]),
                weight_decay=np.float32(descent.weight_decay),
                clip=np.float32(descent.clip),
                momentum=np.float32(descent.momentum),
                mu=np.float32(_of(options.mu, i)),
                anchor_rate=np.float32(_of(options.anchor_rate, i)),
                anchor=NOTHING if anchor is None else anchor[i].numpy(),
                shift=NOTHING if options.shift is None else _numbers(options.shift[i]),
                offset=NOTHING if options.offset is None else _numbers(options.offset[i]),
                repeats=options.repeats,
                ranges=np.concatenate([live, dead]) if everywhere else live,
                live=len(live),
            )
            velocity = np.zeros(self.layout.width if descent.momentum else 0, np.float32)
            moved = (fresh[i].numpy(), self._gradient, velocity)
            for x, y, chosen, counts in descent.pieces(i):
                data = (self._flat(x), y.numpy(), chosen, counts)
                loops.run(loops.TRAIN, plan, arena, *moved, *data, steps, self._seed(), NOWHERE, NOWHERE)
            for start, end in dead.tolist() if everywhere else ():
                self._gradient[start:end] = 0  # of what pulled there
        return Descended(fresh, anchor, None, descent.length)

    @cached_property
    def _gradient(self) -> Row:
        return _aligned(self.layout.width)

    def _table(self, examples: int, *, training: bool) -> Table:
        found = self._tables.get(training)
        if found is None or found.capacity < examples:
            found = self._tables[training] = Table(self.trace, self.layout, examples, training=training)
        return found

    def _arena(self, table: Table) -> Row:
        if self._memory is None or len(self._memory) < table.size:
            self._memory = _aligned(table.size)
        return self._memory

    def _plan(self, table: Table, columns: slice | None = None) -> Plan:
        operations = table.rows if columns is None else table.until(columns)
        entering = table.entry, self._centre, self._scale
        return Plan(operations, addresses(operations), *entering, table.logits, table.classes)

    def _run(
        self,
        mode: int,
        table: Table,
        row: Tensor,
        x: Tensor,
        y: Tensor,
        *,
        columns: slice | None = None,
        offset: Row = NOTHING,
        found: tuple[Floats, Floats] = (NOWHERE, NOWHERE),
    ) -> None:
        """All of x in batches, without a step."""
        count = len(y)
        block = min(count, EVALUATED if mode == loops.EVALUATE else MOST)
        positions = np.resize(np.arange(count, dtype=np.int32), (-(-count // block), block))
        counts = np.minimum(block, count - block * np.arange(len(positions))).astype(np.int32)
        if found[0] is NOWHERE:
            found = np.empty(count), np.empty(count)
        work = (_numbers(row), self._gradient, NOTHING, self._flat(x), y.numpy(), positions, counts)
        steps = STILL._replace(offset=offset)
        seed = np.uint64(0) if mode == loops.EVALUATE else self._seed()  # nothing is dropped there
        loops.run(mode, self._plan(table, columns), self._arena(table), *work, steps, seed, *found)

    def check_examples(self, row: Tensor, examples: Examples, who: str, first: int = 0) -> None:
        self._admit(examples.x, f"{who.format(first)}: ")
        if self._tokens is not None:
            examples.check_tokens(self._tokens, who, first)
        super().check_examples(row, examples, who, first)

    def _admit(self, x: Tensor, who: str = "") -> None:
        """Raise unless the trace holds for these examples too: a forward may ask for their shape and type."""
        if x.shape[1:] == self._shape and x.dtype in self._seen:
            return
        fits = x.shape[1:] == self._shape
        if fits:
            try:
                with torch.random.fork_rng(devices=[]):  # the draws of a dropout are not a client's
                    fits = trace(self.module, x[:1].clone()).agrees(self.trace)
            except (Unplanned, RuntimeError):
                fits = False
        if not fits:
            known = f"{', '.join(sorted(map(str, self._seen)))} {list(self._shape)}"
            raise UserError(
                f"{who}examples are {x.dtype} {list(x.shape[1:])}, but the model's plan was made for "
                f"{known}; use examples of the same type and shape everywhere, or set path = rows"
            )
        self._seen.add(x.dtype)

    def _flat(self, x: Tensor) -> npt.NDArray[Any]:
        self._admit(x)
        if self._tokens is not None and not tokens_fit(x, self._tokens):  # compiled code would read beyond
            raise UserError(
                f"tokens of examples go from {int(x.min())} to {int(x.max())}; expected 0 to "
                f"{self._tokens - 1}"
            )
        shape = self.trace.input.shape
        x = x if x.dtype in (torch.uint8, torch.float32) else x.float()  # numba compiles for each type
        return np.ascontiguousarray(x.reshape(len(x), shape.channels, shape.positions).numpy())

    def _seed(self) -> np.uint64:
        """For dropout: drawn from torch's generator, whose stream is the client's own."""
        if not any(node.kind == "dropout" for node in self.trace.nodes):
            return np.uint64(0)
        return np.uint64(int(torch.randint(2**62, ())))

    @property
    def compiled(self) -> bool:
        """Whether all code lies in numba's cache, so that the first call is quick."""
        return is_kept(loops.run) and are_kept(self._table(1, training=True).rows)

    def check(self, x: Tensor) -> None:
        """Compare with the module itself, at weights that hide nothing. Raises `Unplanned` if the trace is
        wrong."""
        for phase in PHASES:  # where a relu or a maximum is at its edge, rounding alone decides on a gradient
            wrong = self._wrong_gradient(_varied(x[:CHECKED]), phase)
            if wrong is None:
                return
        raise Unplanned(f"its plan computes other gradients than the module, for {wrong}")

    def _wrong_gradient(self, x: Tensor, phase: float) -> str | None:
        """The parameter whose gradient is not the module's, if there is one. Raises `Unplanned` if the logits
        differ."""
        row = self.layout.row(self.module)
        _shake(row, phase)
        theirs, y, slopes = self._autograd(row, x)
        kept = self.trace.nodes  # a dropout of nothing is what a module does outside of training
        self.trace.nodes = [replace(node, number=0.0) if node.kind == "dropout" else node for node in kept]
        ours = self.logits(row[None], x[None])[0]
        self._run(loops.DIFFERENTIATE, self._table(len(y), training=True), row, x, y)
        gradient = torch.from_numpy(self._gradient)
        self.trace.nodes = kept
        self._tables.clear()
        if not (ours - theirs).norm() <= ROUNDING * theirs.norm():
            raise Unplanned("its plan computes other logits than the module")
        lengths = {name: slope.norm() for name, slope in slopes.items()}
        least = ROUNDING / 10 * torch.stack(list(lengths.values())).norm()  # a zero gradient is rounding
        for name, slope in slopes.items():
            away = gradient[self.layout.columns[name]] - self.layout.flat(slope)
            if not away.norm() <= ROUNDING * lengths[name] + least:
                return name
        return None

    def _autograd(self, row: Tensor, x: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The module's own logits, labels that it finds unlikely, and the gradients of its parameters."""
        dropout = any(node.kind == "dropout" for node in self.trace.nodes)
        # Each parameter is a leaf: as a view of one row it would get a gradient as long as the row.
        views = self.layout.views(row)
        leaves = {name: view.contiguous().requires_grad_() for name, view in views.items()}
        try:
            for count in (1, len(x)):  # a forward may ask how many examples there are, or draw a constant
                if not trace(self.module, x[:count].clone()).agrees(self.trace):
                    raise Unplanned("its forward differs from one batch to the next")
            with torch.no_grad():
                logits = functional_call(self._mode(training=False), leaves, (x.clone(),))
            y = logits.argmin(1)
            trained = functional_call(self._mode(training=not dropout), leaves, (x.clone(),))
            loss = cross_entropy(trained, y).mean()
            slopes = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        except (RuntimeError, ValueError) as error:  # such as a reshape for another number of examples
            raise Unplanned(f"its forward fails on 1 example or on {len(x)}, though not on others") from error
        return logits, y, dict(zip(leaves, slopes, strict=True))


def _varied(x: Tensor) -> Tensor:
    """The examples, and others in which nothing is zero by chance. Tokens stay what they are."""
    if x.dtype == torch.uint8 and x.dim() == 4:
        return torch.cat([x, x + torch.arange(x.numel()).view(x.shape).to(torch.uint8)])
    if not x.is_floating_point():
        return x
    wave = torch.cos(torch.arange(x.numel(), dtype=x.dtype)).view(x.shape)
    return torch.cat([x, x * wave + wave])


def _shake(row: Tensor, phase: float) -> None:
    """Add a small wave to weights in place, so that none is zero or equal to its neighbours."""
    wave = 0.1 * torch.cos(torch.arange(WAVE) * 0.7 + phase)
    whole = len(row) // WAVE * WAVE
    row[:whole].view(-1, WAVE).add_(wave)
    row[whole:].add_(wave[: len(row) - whole])


def _of(values: Tensor | float | None, i: int) -> float:
    return 0.0 if values is None else float(values[i]) if isinstance(values, Tensor) else values


def _decayed(row: Tensor, dead: Ranges, keep: float, out: Tensor) -> None:
    """Copy a row. Columns that never get a gradient decay for all steps at once, in the same pass."""
    at = 0
    for start, end in dead.tolist():
        out[at:start] = row[at:start]
        torch.mul(row[start:end], keep, out=out[start:end])
        at = end
    out[at:] = row[at:]


def _numbers(row: Tensor) -> Row:
    return row.contiguous().numpy()


def _aligned(size: int) -> Row:
    """Zeros that begin at a cache line."""
    raw = np.zeros(size + 16, np.float32)
    start = -raw.ctypes.data % 64 // 4
    return raw[start : start + size]
