"""A run directory. It belongs to one run and is locked while it is written."""

import fcntl
import shutil
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from pagefl.core.errors import UserError
from pagefl.core.files import write_whole

from . import checkpoint, record, vouched
from .own_files import LOCK, OLD, PROBLEM, check_own_files
from .own_files import SPEC as SPEC
from .workers import Say

STAGES = "stages"


def stages_of(path: Path) -> list[Path]:
    """Checkpoints from which the game can be replayed: the kept stages, and the last checkpoint."""
    kept = sorted((path / STAGES).glob("*/" + checkpoint.NAME))
    last = path / checkpoint.NAME
    return [*kept, *([last] if last.exists() else [])]


def last_facts(path: Path) -> dict[str, Any] | None:
    """The facts of the newest readable checkpoint; None if there is none."""
    for name in (checkpoint.NAME, checkpoint.PREVIOUS):
        with suppress(checkpoint.Damaged):
            return checkpoint.read_facts(path / name)
    return None


class InUse(UserError):
    """Another process uses the directory."""


class Found(NamedTuple):
    """The checkpoint that a run continues from."""

    name: str  # file name of the checkpoint
    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    held: dict[str, bytes]  # the part of each file that the checkpoint covers


class RunDirectory:
    def __init__(
        self, path: Path, spec_text: str = "", *, fresh: bool = False, restart: bool = False
    ) -> None:
        """`fresh`: for a new run; the directory must be empty. `restart`: move existing files aside.

        Nothing is written before `open`.
        """
        self.path, self.spec_text, self.fresh, self.restart = path, spec_text, fresh, restart
        if fresh:
            self._check_free()

    @contextmanager
    def open(self, say: Say) -> Iterator[None]:
        """Lock the directory and prepare it for this run."""
        with self.alone():
            if self.fresh:
                self._check_free()
            if self.restart:
                self._put_aside(say)
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the directory for this process."""
        check_own_files(self.path)
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / LOCK).open("w") as held:
            # lockf, not flock: workers do not inherit this lock, and it is released if the process is killed.
            try:
                fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InUse(
                    f"{self.path} is in use by another run; wait for it, or choose another directory"
                ) from None
            yield

    def last(self, say: Say) -> Found | None:
        """The newest complete checkpoint; None if the run has not begun.

        If something is damaged that continuing would lose, this raises and changes nothing.
        """
        if not record.has_begun(self.path):
            return None
        name, (tensors, facts) = self._newest_whole(say)
        found = Found(name, tensors, facts, vouched.held(self.path, facts))
        for name, content in found.held.items() if facts.get("over") else ():
            if (self.path / name).exists() and (self.path / name).stat().st_size > len(content):
                raise UserError(
                    f"{self.path / name} is longer than when the run finished; cut it to {len(content)} "
                    "bytes, "
                    f"or start over with `pagefl resume {self.path} --restart`"
                )
        return found

    def go_on(self, found: Found | None, rounds: int) -> None:
        """Prepare to continue: move a damaged checkpoint aside, and write a new or changed spec."""
        (self.path / PROBLEM).unlink(missing_ok=True)
        current = self.path / checkpoint.NAME
        if found and found.name != checkpoint.NAME and current.exists():
            current.replace(self.path / f"{checkpoint.NAME}.damaged")
        if self.spec().get("rounds") != rounds:
            write_whole(self.path / SPEC, self.spec_text)

    def note_problem(self, error: Exception) -> None:
        """Leave a sentence that says why the run has failed, until it goes on."""
        sentence = UserError(
            str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        )
        with suppress(OSError):  # such as a full disk, which may be the problem
            write_whole(self.path / PROBLEM, f"{sentence}\n")

    def spec(self) -> dict[str, Any]:
        """The spec on disk; empty if there is none."""
        path = self.path / SPEC
        try:
            return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UserError(f"{path} is not valid TOML ({error}); restore it") from None

    def _newest_whole(self, say: Say) -> tuple[str, tuple[dict[str, Tensor], dict[str, Any]]]:
        try:
            return checkpoint.NAME, checkpoint.read(self.path / checkpoint.NAME)
        except checkpoint.Damaged as damage:
            newest = damage
        try:
            found = checkpoint.read(self.path / checkpoint.PREVIOUS)
        except checkpoint.Damaged as damage:
            raise UserError(f"{newest}, and {damage}; {vouched.way_out(self.path)}") from None
        say(f"{newest}; using the one before it, of round {found[1]['round']}")
        return checkpoint.PREVIOUS, found

    def _put_aside(self, say: Say) -> None:
        """Move everything to a folder in the directory, with a copy of the spec, for inspection."""
        left = [
            entry
            for entry in self.path.iterdir()
            if entry.name not in (SPEC, LOCK) and not entry.name.startswith(OLD)
        ]
        if not left:
            return
        aside = next(
            path for number in range(1, 10**6) if not (path := self.path / f"{OLD}{number}").exists()
        )
        aside.mkdir()
        for entry in left:
            entry.rename(aside / entry.name)
        shutil.copy2(self.path / SPEC, aside / SPEC)
        say(f"starting over from round 1; what was there is now in {aside}")

    def _check_free(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"out = {self.path}: this is a file; expected a new or an empty directory")
        if self.path.exists() and any(entry.name != LOCK for entry in self.path.iterdir()):
            raise UserError(
                f"out = {self.path}: the directory is not empty; choose another, or `pagefl resume "
                f"{self.path}` if it is a run"
            )
