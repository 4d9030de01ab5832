"""The wire format: arrays as raw float32, numbers by name.

Nothing is unpickled. What arrives is checked against what is expected.
"""

from collections.abc import Iterable, Mapping
from importlib.metadata import version
from math import isinf

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from pagefl.core import layout
from pagefl.core.algorithm import State
from pagefl.core.personal import Step
from pagefl.game.messages import Orders
from pagefl.game.rewards import DemandRatio

ARRAYS, NUMBERS, ASK = "arrays", "numbers", "ask"
VERSION = version("pagefl")  # both sides of a federation have the same
RAW = f"raw float32, rows {layout.VERSION}"


class Refused(Exception):
    """A reply is not what was asked for. The message says why in one sentence."""


def pack(
    arrays: State,
    numbers: Mapping[str, float] | None = None,
    ask: Mapping[str, int | float | str] | None = None,
) -> RecordDict:
    records = RecordDict({ARRAYS: ArrayRecord({name: _array(value) for name, value in arrays.items()})})
    if numbers is not None:
        records[NUMBERS] = MetricRecord({name: float(value) for name, value in numbers.items()})
    if ask is not None:
        records[ASK] = ConfigRecord(dict(ask))
    return records


def pack_orders(orders: Orders, run: str, step: Step | None = None) -> RecordDict:
    """A message to a node. With a round it asks for training, otherwise for the client's number.

    `step`: the personal step that the client takes.
    """
    ask: dict[str, int | float | str] = {"run": run, "version": VERSION}
    if orders.round:
        ask |= {"round": orders.round, "demand": str(orders.demand), "mean_size": orders.mean_size}
        ask |= {"judged": int(orders.judged)}
    if step is not None:
        ask |= step._asdict()
    return pack({**orders.sent, **orders.policy}, ask=ask)


def orders(
    records: RecordDict, number: int, sent: Mapping[str, torch.Size], policy: Mapping[str, torch.Size]
) -> Orders:
    """The orders, on the node of client `number`. `sent`, `policy`: the arrays that are expected."""
    found, ask = arrays(records, {**sent, **policy}), records[ASK]
    assert isinstance(ask, ConfigRecord)
    return Orders(
        round=int(ask.get("round", 0)),  # type: ignore[arg-type]
        clients=np.array([number]),
        sent={name: found[name] for name in sent},
        policy={name: found[name] for name in policy},
        demand=DemandRatio.parse(str(ask.get("demand", "1:1"))),
        mean_size=float(ask.get("mean_size", 1.0)),  # type: ignore[arg-type]
        judged=bool(ask.get("judged", 1)),
    )


def answered(records: RecordDict) -> dict[str, int | float | str]:
    """How a reply says what it answers."""
    ask = records[ASK]
    assert isinstance(ask, ConfigRecord)
    return {"run": str(ask["run"]), "round": int(ask["round"])}  # type: ignore[arg-type]


def step(records: RecordDict) -> Step | None:
    """The personal step to take; None: try all of them."""
    ask = records[ASK]
    assert isinstance(ask, ConfigRecord)
    if "start" not in ask:
        return None
    if (start := ask["start"]) not in ("shared", "own"):
        raise Refused(f"its start is {quoted(str(start))}, and due is shared or own")
    return Step(start, float(ask["lr"]), int(ask["epochs"]))  # type: ignore[arg-type]


def _array(value: Tensor) -> Array:
    data = np.ascontiguousarray(value.detach().cpu().numpy(), np.dtype("<f4"))
    return Array(dtype="float32", shape=tuple(data.shape), stype=RAW, data=data.tobytes())


def arrays(records: RecordDict, due: Mapping[str, torch.Size]) -> State:
    """The arrays that are expected, by name and shape. Others are refused."""
    found = records.get(ARRAYS)
    if not isinstance(found, ArrayRecord):
        raise Refused(f"it has no {ARRAYS}")
    if set(found) != set(due):
        raise Refused(f"its arrays are {_names(found)}, and due are {_names(due)}")
    return {name: _tensor(name, found[name], shape) for name, shape in due.items()}


def _tensor(name: str, array: Array, shape: torch.Size) -> Tensor:
    if array.stype != RAW or array.dtype != "float32" or tuple(array.shape) != tuple(shape):
        found = quoted(f"{array.stype}, {array.dtype}, {list(array.shape)}")
        raise Refused(f"its array {name!r} is {found}, and due is float32, {list(shape)}")
    if len(array.data) != 4 * shape.numel():
        raise Refused(f"its array {name!r} has {len(array.data)} bytes for {shape.numel()} numbers")
    return torch.from_numpy(np.frombuffer(array.data, np.dtype("<f4")).astype(np.float32)).view(shape)


def numbers(records: RecordDict, due: set[str]) -> dict[str, float]:
    found = records.get(NUMBERS)
    if not isinstance(found, MetricRecord):
        raise Refused(f"it has no {NUMBERS}")
    if set(found) != due:
        raise Refused(f"its numbers are {_names(found)}, and due are {_names(due)}")
    if bad := [name for name, value in found.items() if not isinstance(value, int | float) or isinf(value)]:
        raise Refused(f"{_names(bad)} should be finite numbers")
    return {name: float(value) for name, value in found.items()}  # type: ignore[arg-type]


def content(reply: Message | Refused) -> RecordDict:
    if isinstance(reply, Refused):
        raise reply
    if reply.has_error():
        raise Refused(f"it answers with an error: {quoted(reply.error.reason or f'code {reply.error.code}')}")
    return reply.content


def only(records: RecordDict, *names: str) -> None:
    if set(records) != set(names):
        raise Refused(f"its records are {_names(records)}, and due are {_names(names)}")


def quoted(text: str) -> str:
    """Text from outside, quoted and shortened for a message."""
    return repr(text[:200])


def _names(names: Iterable[str]) -> str:
    return ", ".join(quoted(name) for name in sorted(names)[:8]) or "none"  # there may be thousands
