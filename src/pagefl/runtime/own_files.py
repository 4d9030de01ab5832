"""The files of a run directory. One from someone else may contain links to other files."""

import os
from pathlib import Path

from pagefl.core.errors import UserError

SPEC, LOCK, PROBLEM, OLD = "spec.toml", ".lock", "problem.txt", "old-"


def check_own_files(directory: Path) -> None:
    """Raise if one of a run's files is a symbolic link, pipe or device. Call this before opening any."""
    for folder in (directory, directory / "stages", *directory.glob("stages/*/")):
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name) if folder.is_dir() else ():
            if not entry.is_file(follow_symlinks=False) and not entry.is_dir(follow_symlinks=False):
                kind = "symbolic link" if entry.is_symlink() else "pipe, a socket or a device"
                raise UserError(
                    f"{entry.path} is a {kind}; a run directory holds its own files, so remove it or "
                    "restore the file"
                )
