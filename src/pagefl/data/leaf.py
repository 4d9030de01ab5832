"""Reads a federation that LEAF has written: JSON files with users, num_samples and user_data.

Caldas et al.: LEAF: A Benchmark for Federated Settings. 2018.

Three forms are known: images of 28×28 numbers (FEMNIST), texts whose next character is predicted
(Shakespeare), and lists of numbers (Synthetic). A user is a client.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pagefl.core import memory, rng
from pagefl.core.errors import UserError, shown

from . import bounded, published
from .federated import FederatedData
from .pairs import Pair, agree
from .pairs import read as read_pair
from .shakespeare import ALPHABET

SIDE = 28
LARGEST = 2_000_000_000  # bytes of a file
COPIES = 8  # bytes in memory for a byte of JSON: Python's numbers are large
TEST = 0.2  # share of a user's samples, if the files have no test samples

Users = dict[str, Pair]
Splits = dict[str, Users]  # by "train" and "test", or by "all_data"


def from_folder(
    folder: str | Path, *, clients: int = 0, fewest: int = 2, test: float = TEST, seed: int = 0
) -> FederatedData:
    """The federation below a LEAF folder, such as data/femnist/data.

    If it has train and test, every sample keeps its role. Otherwise the samples of all_data, or of the folder
    itself, are split: `test` is the share for each user's own test, drawn by the seed; of texts it is the
    end. `clients`: so many users, drawn by the seed; 0 for all. `fewest`: users with fewer samples are left
    out.
    """
    return federation(Path(folder), read(Path(folder)), clients, fewest, test, seed)


def read(folder: Path, stored: Callable[[str, Pair], Pair] = lambda who, pair: pair) -> Splits:
    """All users of each split, in the order of the files. `stored`: how a user's samples are kept."""
    splits: Splits = {}
    for part, paths in _files(folder).items():
        users: Users = {}
        for path in paths:
            for name, pair in _users(path):
                if name in users:
                    raise UserError(
                        f"{path}: user {shown(name)} is in another file too; expected each user once"
                    )
                users[name] = stored(f"{path}: user {shown(name)}", pair)
        agree([(f"{folder}/{part}: user {shown(name)}", x) for name, (x, _) in users.items()])
        splits[part] = users
    if "test" in splits and (odd := sorted(splits["train"].keys() ^ splits["test"].keys())):
        raise UserError(
            f"{folder}: user {shown(odd[0])} is in train or in test, but not in both, and {len(odd) - 1} "
            "others; expected a split by samples (LEAF's option -t sample)"
        )
    return splits


def federation(
    folder: Path, splits: Splits, clients: int, fewest: int, test: float, seed: int
) -> FederatedData:
    known = next(iter(splits.values()))
    sizes = {name: sum(len(users[name][1]) for users in splits.values()) for name in known}
    able = [name for name, size in sizes.items() if size >= fewest]
    if not 0 <= clients <= len(able) or not able:
        raise UserError(
            f"clients = {clients}: {folder} has {len(able)} users with {fewest} samples or more; "
            "expected at most so many, or 0 for all"
        )
    if clients:
        drawn = rng.stream(seed, "leaf", "users").permutation(len(able))[:clients]
        able = [able[i] for i in sorted(drawn)]
    if "test" in splits:
        train, own = ([splits[part][name] for name in able] for part in ("train", "test"))
        return published.federation(train, own, seed)
    pairs = [_cut(folder, name, known[name], i, test, seed) for i, name in enumerate(able)]
    return published.federation([train for train, _ in pairs], [own for _, own in pairs], seed)


def _cut(folder: Path, name: str, pair: Pair, number: int, test: float, seed: int) -> tuple[Pair, Pair]:
    """Training and test samples of one user.

    Texts overlap, so they are cut in their order, and as many samples as a text is long are left out between.
    """
    x, y = pair
    text = not x.is_floating_point() and x.dim() == 2
    gap, held = x.shape[1] if text else 0, max(1, round(test * len(y)))
    if len(y) - held - gap < 1 or not 0 < test < 1:
        raise UserError(
            f"{folder}: user {shown(name)} has {len(y)} samples, which test = {test} and a gap of {gap} "
            "between the parts do not leave enough of; leave small users out with fewest"
        )
    order = torch.arange(len(y))
    if not text:
        order = torch.from_numpy(rng.stream(seed, "leaf", number).permutation(len(y)))
    train, own = order[: len(y) - held - gap], order[len(y) - held :]
    return (x[train], y[train]), (x[own], y[own])


def _files(folder: Path) -> dict[str, list[Path]]:
    found = {part: sorted((folder / part).glob("*.json")) for part in ("train", "test", "all_data")}
    if found["train"] and found["test"]:
        return {part: found[part] for part in ("train", "test")}
    whole = found["all_data"] or sorted(folder.glob("*.json"))
    if not whole:
        raise UserError(
            f"{folder} holds no LEAF data; expected JSON files in its folders train and test, or in all_data"
        )
    return {"all_data": whole}


def _users(path: Path) -> Iterator[tuple[str, Pair]]:
    if path.exists():
        memory.needs(COPIES * path.stat().st_size, f"{path}: its samples", "use a smaller file")
    found = bounded.json_file(path, LARGEST)
    names, counts, samples = (
        found.get(key) if isinstance(found, dict) else None for key in ("users", "num_samples", "user_data")
    )
    if (
        not isinstance(names, list)
        or not isinstance(counts, list)
        or not isinstance(samples, dict)
        or not len(names) == len(counts) == len(samples)
        or not all(isinstance(name, str) and name in samples for name in names)
        or len(set(names)) < len(names)
    ):
        raise UserError(
            f"{path} is not LEAF's: expected users, each of them once, as many num_samples, and "
            "user_data of the same users"
        )
    for name, count in zip(names, counts, strict=True):
        who, given = f"{path}: user {shown(name)}", samples.pop(name)
        x, y = (given.get(key) if isinstance(given, dict) else None for key in "xy")
        if not isinstance(x, list) or not isinstance(y, list) or not len(x) == len(y) == count or not x:
            raise UserError(f"{who} has not the {shown(count)} samples of num_samples in its lists x and y")
        yield name, _text(who, x, y) if isinstance(x[0], str) else _vectors(who, x, y)


def _vectors(who: str, x: list[Any], y: list[Any]) -> Pair:
    values, labels = read_pair(who, (x, y))
    if values.dim() != 2:
        raise UserError(
            f"{who}: x has shape {list(values.shape)}; expected a list of numbers for each sample"
        )
    values = values.float()
    if not bool(values.isfinite().all()):
        raise UserError(f"{who}: x has a number that float32 cannot hold; scale the data")
    return values.view(-1, 1, SIDE, SIDE) if values.shape[1] == SIDE**2 else values, labels


def _text(who: str, x: list[Any], y: list[Any]) -> Pair:
    """Characters as their places in LEAF's alphabet."""
    lengths = {len(text) if isinstance(text, str) else 0 for text in x}
    if (
        len(lengths) > 1
        or lengths == {0}
        or not all(isinstance(letter, str) and len(letter) == 1 for letter in y)
    ):
        raise UserError(f"{who}: expected texts x of one length, and single characters y")
    whole = "".join([*x, *y])
    if unknown := set(whole) - set(ALPHABET):
        raise UserError(
            f"{who} has {shown(min(unknown))}, which is not among LEAF's {len(ALPHABET)} characters"
        )
    place = np.zeros(128, np.uint8)
    place[[ord(letter) for letter in ALPHABET]] = np.arange(len(ALPHABET))
    places = torch.from_numpy(place[np.frombuffer(whole.encode("ascii"), np.uint8)])
    return places[: -len(y)].view(len(y), -1), places[-len(y) :].long()
