"""Federations of images by their patch features. Features are stored in the user's cache."""

import os
import sys
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from pagefl.core.errors import UserError
from pagefl.core.files import regular

from . import images, patches
from .federated import FederatedData, server_halves
from .images import Split
from .originals import Arrays, Original, cache_root

VERSION = "1"  # of the program that makes the features; those of other versions are made again
IMAGES = ("train.x", "test.x")


def federation(
    original: Original,
    clients: int,
    per_client: int,
    split: Split,
    delta: float,
    sigma: float,
    features: int,
    seed: int,
) -> FederatedData:
    """A federation of `clients` times `per_client` images. The server gets all test images.

    Features are fitted on the server's game half.
    """
    pool = images.some_for_clients(original.load(), clients, per_client, seed)
    return images.dealt(pool | featured(pool, features, seed), clients, split, delta, sigma, False, seed)


def featured(pool: Arrays, features: int, seed: int) -> Arrays:
    """Features of all images, from the cache if possible. Labels are not used."""
    game, _ = server_halves(len(pool["test.x"]), seed)
    settings = f"{VERSION} {patches.recipe()} {features} {seed}"
    made_of = _digest({"game": game} | {name: pool[name] for name in IMAGES}, settings)
    cache = cache_root() / f"patches-{made_of}.safetensors"
    known = _read(cache, made_of)
    if known is not None:
        return known
    if sys.stderr.isatty():
        print("fitting patch features (once; kept in the cache) …", file=sys.stderr)
    extract = patches.fit(pool["test.x"][game], features, seed)
    made = {name: extract(pool[name]) for name in IMAGES}
    _write(cache, made, made_of)
    return made


def _digest(arrays: Arrays, settings: str) -> str:
    digest = blake2b(settings.encode(), digest_size=16)
    for name, array in sorted(arrays.items()):
        digest.update(repr((name, list(array.shape), str(array.dtype))).encode())
        digest.update(array.contiguous().numpy().data)
    return digest.hexdigest()


def _read(cache: Path, made_of: str) -> Arrays | None:
    """The cached features; None if the file is missing or damaged."""
    try:
        regular(cache)
        with safe_open(cache, framework="pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            whole = file.metadata() == {"content": _digest(found, made_of)}
        return found if whole else None
    except (OSError, SafetensorError, UserError):
        return None


def _write(cache: Path, made: Arrays, made_of: str) -> None:
    """Without room or the right to write, the next run makes them again."""
    aside = cache.with_suffix(f".{os.getpid()}")
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        save_file(made, aside, metadata={"content": _digest(made, made_of)})
        aside.replace(cache)
    except (OSError, SafetensorError):
        with suppress(OSError):
            aside.unlink()
