"""A run directory: one run's alone, locked while it is written."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pagefl.core.errors import UserError

from . import checkpoint

SPEC, STAGES = "spec.toml", "stages"


def stages_of(path: Path) -> list[Path]:
    """Checkpoints from which the game can be replayed: the stages that were kept, and the last."""
    kept = sorted((path / STAGES).glob("*/" + checkpoint.NAME))
    last = path / checkpoint.NAME
    return [*kept, *([last] if last.exists() else [])]


def write_whole(path: Path, text: str) -> None:
    """Whole, or not at all."""
    aside = path.with_name(f"{path.name}.aside")
    aside.write_text(text)
    aside.replace(path)


class InUse(UserError):
    """Another process is running it."""


class RunDirectory:
    def __init__(self, path: Path, spec_text: str = "", *, fresh: bool = False) -> None:
        """`fresh`: for a new run, so it must be empty. Nothing is written before `open`."""
        self.path, self.spec_text, self.fresh = path, spec_text, fresh
        if fresh:
            self._check_free()

    @contextmanager
    def open(self) -> Iterator[None]:
        """Lock it for this process, and write the complete spec down."""
        with self.alone():
            if self.fresh:
                self._check_free()
            write_whole(self.path / SPEC, self.spec_text)
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Locked for this process."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("w") as held:
            # lockf, not flock: a lock of this process alone, which its workers do not inherit and a kill releases.
            try:
                fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InUse(f"{self.path} is in use by another run; wait for it, or choose another directory") from None
            yield

    def _check_free(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"out = {self.path}: this is a file; valid is a new or an empty directory")
        if self.path.exists() and any(entry.name != ".lock" for entry in self.path.iterdir()):
            raise UserError(
                f"out = {self.path}: the directory is not empty; choose another, or `pagefl resume {self.path}` if it is a run"
            )

    def checkpoint(self) -> tuple[tuple[dict, dict] | None, list[str]]:  # type: ignore[type-arg]
        """The newest whole checkpoint, and what has to be said about the others."""
        said: list[str] = []
        for name in (checkpoint.NAME, checkpoint.PREVIOUS):
            path = self.path / name
            if not path.exists():
                continue
            try:
                tensors, facts = checkpoint.read(path)
                for file, size in facts["sizes"].items():
                    if not (self.path / file).is_file() or (self.path / file).stat().st_size < size:
                        raise checkpoint.Damaged(f"{file} is shorter than {name} says")
                return (tensors, facts), said
            except checkpoint.Damaged as damage:
                said.append(f"{damage}; using the one before it" if name == checkpoint.NAME else str(damage))
        return None, said
