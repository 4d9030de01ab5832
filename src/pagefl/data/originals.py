"""The original files of data sets, and the arrays that are made from them once. Nothing is ever downloaded.

Files are searched below PAGEFL_DATA, or below ./data if it is not set. Arrays are stored in the user's cache.
They are made again when the original files change.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pagefl.core.errors import UserError
from pagefl.core.files import regular, regular_below

VERSION = "1"  # version of the arrays; arrays of other versions are made again
Arrays = dict[str, Tensor]


@dataclass(frozen=True)
class Original:
    """A data set as its authors distribute it."""

    name: str
    places: tuple[str, ...]  # paths below the root; one is enough
    home: str  # where users can get it
    verify: Callable[[Path], str]  # returns what was verified; raises if something is wrong
    read: Callable[[Path], Arrays]  # raises in the same cases

    def find(self, root: Path | None = None) -> Path:
        root = root or data_root()
        for place in self.places:
            if (root / place).exists():
                return root / place
        looked = " or ".join(str(root / place) for place in self.places)
        raise UserError(
            f"{self.name}: there is no {looked}; get the original from {self.home} and set PAGEFL_DATA to "
            "the folder it is in"
        )

    def check(self, root: Path | None = None) -> tuple[Path, str]:
        """Its path, and what was verified."""
        source = self.find(root)
        with _sentences(self.name, source):
            _fingerprint(source)
            return source, self.verify(source)

    def load(self, root: Path | None = None) -> Arrays:
        """The arrays, from the cache if possible. Otherwise they are read, verified and cached."""
        source = self.find(root)
        with _sentences(self.name, source):
            made_of = {"source": _fingerprint(source), "version": VERSION}
            cache = (
                cache_root()
                / f"{self.name}-{sha256(str(source.resolve()).encode()).hexdigest()[:12]}.safetensors"
            )
            known = _read(cache, made_of)
            if known is not None:
                return known
            arrays = self.read(source)
        _write(cache, arrays, made_of)
        return arrays


def data_root() -> Path:
    return Path(os.environ.get("PAGEFL_DATA") or "data")


def cache_root() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pagefl" / "data"


@contextmanager
def _sentences(name: str, source: Path) -> Iterator[None]:
    """Report an OSError as a UserError of one sentence."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{name}: {error.filename or source} cannot be read: {error.strerror or error}"
        ) from error


def _fingerprint(source: Path) -> str:
    """A hash of the names, sizes and times of all files. It is cheap, and changes when a file does.

    Anything that is not a regular file is refused.
    """
    digest = sha256()
    for file, facts in regular_below(source):
        digest.update(repr((str(file.relative_to(source)), facts.st_size, facts.st_mtime_ns)).encode())
    return digest.hexdigest()


def _read(cache: Path, made_of: dict[str, str]) -> Arrays | None:
    """The cached arrays, memory-mapped; None if the cache is missing, damaged or outdated."""
    try:
        regular(cache)
        with safe_open(cache, framework="pt") as file:
            if file.metadata() != made_of:
                return None
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError, UserError):
        return None


def _write(cache: Path, arrays: Arrays, made_of: dict[str, str]) -> None:
    needed = sum(array.nbytes for array in arrays.values())
    aside = cache.with_suffix(f".{os.getpid()}")
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(cache.parent).free
        if free < needed:
            raise UserError(
                f"{cache.parent} has {free / 1e6:.0f} MB free, the arrays need {needed / 1e6:.0f} MB; "
                "make room or set XDG_CACHE_HOME to another disk"
            )
        save_file(arrays, aside, metadata=made_of)
        aside.replace(cache)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            aside.unlink()
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"{cache} cannot be written: {reason}; set XDG_CACHE_HOME to a folder with room"
        ) from error
