"""A run directory: one run's alone, locked while it is written."""

import fcntl
from pathlib import Path

from pagefl.core.errors import UserError

from . import checkpoint, record

SPEC = "spec.toml"


class RunDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, spec_text: str) -> "RunDirectory":
        if path.exists() and not path.is_dir():
            raise UserError(f"out = {path}: this is a file; valid is a new or an empty directory")
        path.mkdir(parents=True, exist_ok=True)
        directory = cls(path)
        directory._lock()
        if any(entry.name != ".lock" for entry in path.iterdir()):
            raise UserError(f"out = {path}: the directory is not empty; choose another, or `pagefl resume {path}` if it is a run")
        directory.write_spec(spec_text)
        return directory

    @classmethod
    def reopen(cls, path: Path) -> "RunDirectory":
        if not (path / SPEC).is_file():
            raise UserError(f"{path} is not a run directory (it has no {SPEC}); valid is one that `pagefl run` made")
        directory = cls(path)
        directory._lock()
        return directory

    def write_spec(self, text: str) -> None:
        aside = self.path / f"{SPEC}.aside"
        aside.write_text(text)
        aside.replace(self.path / SPEC)

    def _lock(self) -> None:
        # lockf, not flock: a lock of this process alone, which its workers do not inherit and a kill releases.
        self._held = (self.path / ".lock").open("w")
        try:
            fcntl.lockf(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{self.path} is in use by another run; wait for it, or choose another directory") from None

    def unlock(self) -> None:
        self._held.close()

    def checkpoint(self) -> tuple[tuple[dict, dict] | None, list[str]]:  # type: ignore[type-arg]
        """The newest whole checkpoint, and what has to be said about the others."""
        said = []
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


__all__ = ["SPEC", "RunDirectory", "record"]
