"""What an algorithm's hooks must answer.

A mistake in a hook ends in a sentence with its class and its name. Only names, types and shapes are looked
at, so the checks cost microseconds and are made in every round.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

from torch import Size, Tensor

from .algorithm import Algorithm, Local, State
from .errors import UserError


def server_state(algorithm: Algorithm, state: State, row: Tensor) -> State:
    return _with_model(algorithm, "server_state", state, row.shape)


def sent(algorithm: Algorithm, state: State, row: Tensor) -> State:
    return _with_model(algorithm, "send", state, row.shape)


def client_state(algorithm: Algorithm, state: State) -> State:
    for name, value in _tensors(algorithm, "client_state", "", state).items():
        if value.dim() != 1:
            _refuse(
                algorithm,
                "client_state",
                f"{name!r} of shape {list(value.shape)}",
                "one row [numbers] for one client",
            )
    return state


def local(
    algorithm: Algorithm, made: Local, count: int, width: int, kept: State, uploads: State | None = None
) -> Local:
    """`kept`, `uploads`: every client's rows; `uploads` may not be known before the first round."""
    if not isinstance(made, Local):
        _refuse(algorithm, "local", f"a {type(made).__name__}", "pagefl.Local(upload=…, personal=…, kept=…)")
    _tensors(algorithm, "local", "upload ", made.upload)
    _tensors(algorithm, "local", "kept ", made.kept)
    if uploads is not None and made.upload.keys() != uploads.keys():
        _refuse(
            algorithm,
            "local",
            f"uploads {sorted(made.upload)}",
            f"{sorted(uploads)}, as upload_state or round 1 has it",
        )
    if unknown := made.kept.keys() - kept.keys():
        known = f"names that client_state returns: {sorted(kept)}"
        _refuse(algorithm, "local", f"kept {sorted(unknown)}", known)
    if not isinstance(made.personal, Tensor) or made.personal.shape != (count, width):
        found = (
            list(made.personal.shape) if isinstance(made.personal, Tensor) else type(made.personal).__name__
        )
        _refuse(algorithm, "local", f"personal {found}", f"[clients, columns] = {[count, width]}")
    for name, value in made.upload.items():
        if (
            value.dim() != 2
            or len(value) != count
            or (uploads and value.shape[1:] != uploads[name].shape[1:])
        ):
            wanted = list(uploads[name].shape[1:]) if uploads else ["numbers"]
            expected = f"a row for each client, {_shape(count, *wanted)}"
            _refuse(algorithm, "local", f"upload {name!r} of shape {list(value.shape)}", expected)
    for name, value in made.kept.items():
        if value.shape != (count, *kept[name].shape[1:]):
            expected = f"{_shape(count, *kept[name].shape[1:])}, as client_state has it"
            _refuse(algorithm, "local", f"kept {name!r} of shape {list(value.shape)}", expected)
    return made


@contextmanager
def nothing_written(algorithm: Algorithm, sent: State) -> Iterator[None]:
    """What was sent is there once for all clients of a block: a client that wrote into it would change it
    for the others."""
    sentence = (
        f"{type(algorithm).__name__} writes into a tensor that its clients share, such as "
        "clients.sent['model']; expected a copy of its own, clients.sent['model'].clone()"
    )
    before = [value._version for value in sent.values()]
    try:
        yield
    except RuntimeError as error:
        if "written-to tensor" in str(error):  # torch's own words, where a tensor has a row for each of many
            raise UserError(sentence) from error
        raise
    if before != [value._version for value in sent.values()]:
        raise UserError(sentence)


def adapted(algorithm: Algorithm, rows: Tensor, count: int, width: int) -> Tensor:
    return _models(algorithm, "adapt", rows, count, width)


def aggregated(algorithm: Algorithm, state: State, before: State) -> State:
    _tensors(algorithm, "aggregate", "", state)
    if state.keys() != before.keys():
        _refuse(algorithm, "aggregate", f"{sorted(state)}", f"{sorted(before)}, as server_state has it")
    for name, value in state.items():
        if value.shape != before[name].shape or value.dtype != before[name].dtype:
            found = f"{name!r} as {value.dtype} {list(value.shape)}"
            _refuse(
                algorithm, "aggregate", found, f"{before[name].dtype} {list(before[name].shape)}, as before"
            )
    return state


def candidates(algorithm: Algorithm, sent: Tensor, upload: State, count: int) -> Tensor:
    """The models that uploads stand for; a server that looks at them cannot do without."""
    name = type(algorithm).__name__
    if upload and "model" not in upload and type(algorithm).candidates is Algorithm.candidates:
        raise UserError(
            f"{name} uploads {sorted(upload)} and no 'model', so the server's player cannot look at its "
            "uploads: define "
            f"`candidates(self, sent, upload)` in {name}, which returns the models they stand for, "
            "[clients, columns]"
        )
    rows = algorithm.candidates(sent, upload)
    if not upload and isinstance(rows, Tensor) and rows.shape == sent.shape:  # one model for all
        rows = rows.expand(count, -1)
    return _models(algorithm, "candidates", rows, count, sent.shape[1])


def _with_model(algorithm: Algorithm, hook: str, state: State, shape: Size) -> State:
    found = _tensors(algorithm, hook, "", state).get("model")
    if found is None or found.shape != shape:
        what = (
            f"{sorted(state)} without 'model'" if found is None else f"'model' of shape {list(found.shape)}"
        )
        _refuse(algorithm, hook, what, f"'model' among them, the shared model of shape {list(shape)}")
    return state


def _models(algorithm: Algorithm, hook: str, rows: Tensor, count: int, width: int) -> Tensor:
    if not isinstance(rows, Tensor) or rows.shape != (count, width):
        found = f"a tensor {list(rows.shape)}" if isinstance(rows, Tensor) else f"a {type(rows).__name__}"
        _refuse(algorithm, hook, found, f"a model for each client, [clients, columns] = {[count, width]}")
    return rows


def _tensors(algorithm: Algorithm, hook: str, what: str, state: State) -> State:
    if not isinstance(state, Mapping):
        _refuse(algorithm, hook, f"{what}{type(state).__name__}", "a dict of names and tensors")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            _refuse(
                algorithm, hook, f"{what}{name!r}: a {type(value).__name__}", "a dict of names and tensors"
            )
    return state


def _shape(*sizes: int | str) -> str:
    return f"[{', '.join(map(str, sizes))}]"


def _refuse(algorithm: Algorithm, hook: str, found: str, expected: str) -> NoReturn:
    raise UserError(f"{type(algorithm).__name__}.{hook} returned {found}; expected {expected}")
