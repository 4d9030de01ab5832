"""Chooses how a module is trained: fused, planned, stacked or row by row. The last two are measured once on
each machine."""

import json
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor, nn

from pagefl.core.caches import user_cache
from pagefl.core.errors import UserError, shortened, shown
from pagefl.core.training.descent import Batch
from pagefl.core.training.linear import LinearModel
from pagefl.core.training.loss import Loss, OwnLoss
from pagefl.core.training.model import Model, RowModel, StackedModel, check_trainable
from pagefl.core.training.plan.model import PlanModel
from pagefl.core.training.plan.trace import Unplanned

from .workers import Say


def check_device(device: str) -> None:
    """Raise unless torch can write a number to the device and read it again."""
    wanted = "expected cpu, or a device that torch can use here"
    try:
        if torch.device(device).type == "cpu" and device != "cpu":
            raise UserError(f"device = {shown(device)}: there is one CPU; {wanted}")
        torch.ones(1, device=device).item()
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"device = {shown(device)}: {shortened(str(error).split(chr(10))[0], 120)}; {wanted}"
        ) from None


def build(
    module: nn.Module,
    x: Tensor,
    path: str,
    device: str,
    say: Say = lambda line: None,
    loss: Loss | None = None,
) -> Model:
    """`x`: a batch of real examples. `loss`: of the user's own."""
    random = check_trainable(module, x)
    if loss is not None:
        return _with_loss(loss, module, x, path, device, random)
    if path in ("auto", "fused") and LinearModel.fits(module, x, device):
        return LinearModel(module, device)
    if path == "fused":
        raise UserError(
            "path = fused: the module is not one linear layer in float32 on the CPU; "
            "expected auto, plan, stacked or rows"
        )
    why = ""
    if path in ("auto", "plan"):
        try:
            return _planned(module, x, device, say)
        except Unplanned as reason:
            why = str(reason)
        if path == "plan":
            raise UserError(f"path = plan: {why}; expected auto, stacked or rows")
    return _generic(module, x, path, device, random, why)


def _with_loss(loss: Loss, module: nn.Module, x: Tensor, path: str, device: str, random: bool) -> Model:
    """Compiled paths know the gradient of the cross entropy only."""
    why = "the task has a loss of its own"
    if path in ("fused", "plan"):
        raise UserError(f"path = {path}: {why}; expected auto, stacked or rows")
    model = _generic(module, x, path, device, random, why)
    model.loss = OwnLoss(loss, model.logits(model.layout.row(module)[None], x[None, :1].clone())[0])
    return model


def _generic(module: nn.Module, x: Tensor, path: str, device: str, random: bool, why: str) -> Model:
    if path == "stacked" and random:
        raise UserError(
            "path = stacked: the module draws random numbers (dropout), which a stack would share; "
            "expected auto or rows"
        )
    if path == "auto":
        path = "rows" if random else _measured(module, x, device)
    model = {"stacked": StackedModel, "rows": RowModel}[path](module, device)
    model.why = why
    return model


def _planned(module: nn.Module, x: Tensor, device: str, say: Say) -> Model:
    if device != "cpu":
        raise Unplanned("plans are for CPUs")
    model = PlanModel(module, x)
    if not model.compiled:
        say("compiling the plan's operations (once; kept in numba's cache) …")
    model.check(x)
    return model


def _measured(module: nn.Module, x: Tensor, device: str) -> str:
    """The faster path. It is stored, so that a close result does not change a run's last bits later."""
    facts = (str(module), list(x.shape), str(x.dtype), device, torch.__version__, torch.get_num_threads())
    name = sha256(repr(facts).encode()).hexdigest()[:16]
    store = (user_cache() or Path(os.devnull)) / "pagefl" / "paths.json"
    try:
        known = json.loads(store.read_text())
    except (OSError, ValueError):
        known = {}
    if known.get(name) in ("stacked", "rows"):
        return str(known[name])
    answer = _race(module, x, device)
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        aside = store.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps({**known, name: answer}))
        aside.replace(store)
    except OSError:
        pass  # then it is measured again in the next run
    return answer


def _race(module: nn.Module, x: Tensor, device: str) -> str:
    stacked, rows = StackedModel(module, device), RowModel(module, device)
    row = stacked.layout.row(module)
    n = int(min(16, max(2, 8e6 // len(row))))
    stack = row.expand(n, -1).clone()
    y = torch.zeros(n, len(x), dtype=torch.long, device=device)
    batch = Batch(x.to(device).expand(n, *x.shape), y, torch.full_like(y, 1 / len(x), dtype=row.dtype))
    try:
        stacked.gradient(stack, batch)
        stacked.logits(stack, batch.x)
    except RuntimeError:
        return "rows"  # vmap does not support something in this module
    rows.gradient(stack, batch)
    times = [
        (_seconds(lambda: stacked.gradient(stack, batch)), _seconds(lambda: rows.gradient(stack, batch)))
        for _ in range(3)
    ]
    best_stacked, best_rows = (min(column) for column in zip(*times, strict=True))
    return "stacked" if best_stacked < best_rows else "rows"


def _seconds(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start
