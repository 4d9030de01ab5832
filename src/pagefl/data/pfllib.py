"""Reads a partition that PFLlib has written: config.json, train/I.npz and test/I.npz for every client I.

Zhang et al.: PFLlib: A Beginner-Friendly and Comprehensive Personalized Federated Learning Library and
Benchmark. JMLR 2025.

Each npz is a zip of one pickled dict with x and y. It is read by a restricted unpickler, never by NumPy's
own.
"""

import io
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.lib import format as npy

from pagefl.core import memory
from pagefl.core.errors import UserError
from pagefl.core.files import regular

from . import bounded, published
from .federated import FederatedData
from .pairs import Pair, agree, read
from .pickles import unpickle_foreign

NAMES = ("{}.npz", "{part}{}_.npz")  # PFLlib's own, and an older version's
MEMBER = "data.npy"
MOST_CLIENTS = 100_000
LARGEST = 4_000_000_000  # bytes of a client's file, unpacked
CONFIG_BYTES = 50_000_000
COPIES = 6  # of an example: packed in a pickle, as an array, a tensor, joined, and two to spare
PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # Python unpacks other methods without a size limit
BROKEN = (zipfile.BadZipFile, EOFError, zlib.error, RuntimeError, UnicodeDecodeError, ValueError, KeyError)


class Config(NamedTuple):
    clients: int
    classes: int
    counts: Any  # (class, examples) of each client, or None


def from_folder(
    folder: str | Path, *, clients: int = 0, without: Collection[int] = (), seed: int = 0
) -> FederatedData:
    """The federation in a PFLlib folder. Clients keep their order, and examples their roles.

    `clients`: only the first ones; 0 for all. `without`: clients to leave out, by their published numbers,
    such as those whose files are missing. `seed`: draws the copies of training examples that the server gets.
    """
    folder = Path(folder)
    config = _config(folder / "config.json")
    beyond = sorted(set(without) - set(range(config.clients)))
    if beyond:
        raise UserError(
            f"without = {[*without]}: {folder} has no client {beyond[0]}; expected 0 to {config.clients - 1}"
        )
    wanted = [i for i in range(config.clients) if i not in without]
    if not 0 <= clients <= len(wanted) or not wanted:
        raise UserError(
            f"clients = {clients}: {folder} has {len(wanted)} of them; expected at most so many, or 0 for all"
        )
    wanted = wanted[: clients or None]
    paths = {part: [_path(folder, part, i) for i in wanted] for part in ("train", "test")}
    size = sum(_size(path) for part in paths.values() for path in part)
    memory.needs(COPIES * size, f"{folder}: its examples", "use fewer clients, or more memory")
    pairs = {part: [_pair(path, config.classes) for path in found] for part, found in paths.items()}
    agree([(str(path), x) for part in paths for path, (x, _) in zip(paths[part], pairs[part], strict=True)])
    for i, (_, train), (_, test) in zip(wanted, pairs["train"], pairs["test"], strict=True):
        _check_counts(folder, config, i, torch.cat([train, test]))
    return published.federation(pairs["train"], pairs["test"], seed)


def _config(path: Path) -> Config:
    found = bounded.json_file(path, CONFIG_BYTES)
    table: dict[str, Any] = found if isinstance(found, dict) else {}
    clients, classes = table.get("num_clients", 0), table.get("num_classes", 0)
    if not all(type(size) is int and 0 < size <= MOST_CLIENTS for size in (clients, classes)):
        raise UserError(
            f"{path}: num_clients and num_classes must be whole numbers from 1 to {MOST_CLIENTS}, as PFLlib "
            "writes them"
        )
    return Config(clients, classes, table.get("Size of samples for labels in clients"))


def _path(folder: Path, part: str, client: int) -> Path:
    names = [name.format(client, part=part) for name in NAMES]
    for name in names:
        if (folder / part / name).exists():
            return folder / part / name
    kind = "training" if part == "train" else "test"
    raise UserError(
        f"{folder}: client {client} has no {kind} file, neither {part}/{names[0]} nor "
        f"{part}/{names[1]}; get it, or leave this client out with without = [{client}]"
    )


def _size(path: Path) -> int:
    with _archive(path) as archive:
        return archive.getinfo(MEMBER).file_size


def _archive(path: Path) -> zipfile.ZipFile:
    try:
        regular(path)
        archive = zipfile.ZipFile(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    except (*BROKEN, NotImplementedError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} is not an npz file or is cut off: {error}; get it again") from None
    held = archive.infolist()
    if [info.filename for info in held] != [MEMBER]:
        raise UserError(
            f"{path} holds {len(held)} arrays; expected one of the name 'data', as PFLlib writes it"
        )
    if held[0].compress_type not in PACKED or held[0].file_size > LARGEST:
        raise UserError(
            f"{path} is packed by method {held[0].compress_type} to unpack to {held[0].file_size} "
            f"bytes; expected deflate, and at most {LARGEST}"
        )
    return archive


def _pair(path: Path, classes: int) -> Pair:
    try:
        with _archive(path) as archive, archive.open(MEMBER) as file:
            content = bounded.read(file, archive.getinfo(MEMBER).file_size, str(path))
        header = io.BytesIO(content)
        version = npy.read_magic(header)
        shape, _, dtype = (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(
            header
        )
    except UserError:
        raise
    except (*BROKEN, OSError, SyntaxError, TypeError, NotImplementedError, OverflowError) as error:
        raise UserError(f"{path} is not an npz file or is cut off: {error}; get it again") from None
    if dtype != np.dtype(object) or shape != ():
        raise UserError(
            f"{path} holds an array {list(shape)} of {dtype}; expected one pickled dict of x and y"
        )
    found = unpickle_foreign(content[header.tell() :], str(path))
    if not isinstance(found, dict) or not all(isinstance(found.get(key), np.ndarray) for key in "xy"):
        raise UserError(f"{path} holds no dict with arrays of numbers x and y, as PFLlib writes it")
    x, y = read(str(path), (found["x"], found["y"]))
    if int(y.max()) >= classes:
        raise UserError(f"{path}: y has label {int(y.max())}, but config.json says num_classes = {classes}")
    return x, y


def _check_counts(folder: Path, config: Config, client: int, labels: torch.Tensor) -> None:
    """Compare a client's labels with config.json, where it tells how many there are."""
    if config.counts is None:
        return
    try:
        told = {int(label): int(count) for label, count in config.counts[client]}
    except (TypeError, ValueError, LookupError, OverflowError):
        raise UserError(
            f"{folder}/config.json: 'Size of samples for labels in clients' does not tell of client "
            f"{client}; expected a list of [class, examples] for each client"
        ) from None
    found = dict(enumerate(labels.bincount().tolist()))
    for label in sorted({*told, *found}):
        if told.get(label, 0) != found.get(label, 0):
            raise UserError(
                f"{folder}: client {client} has {found.get(label, 0)} examples of class {label}, "
                f"config.json says {told.get(label, 0)}; the files are of another partition"
            )
