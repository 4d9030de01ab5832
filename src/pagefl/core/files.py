"""Files that users name, of which only regular ones are opened, and files that are written whole.

A pipe would keep us waiting, and a device has no end.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from .errors import UserError


def regular(path: Path, largest: int | None = None) -> os.stat_result:
    """`largest`: in bytes, for what is read as a whole."""
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        kind = "a directory" if stat.S_ISDIR(facts.st_mode) else "a pipe, a device or a socket"
        raise UserError(f"{path} is {kind}; expected a regular file")
    if largest is not None and facts.st_size > largest:
        raise UserError(f"{path} has {facts.st_size} bytes; expected at most {largest}")
    return facts


def regular_below(place: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every file in a folder, in the order of their names; or the file itself."""
    if not place.is_dir():
        yield place, regular(place)
        return
    for path in sorted(place.rglob("*")):
        if not path.is_dir():
            yield path, regular(path)


def write_whole(path: Path, text: str) -> None:
    """Write the whole file, or nothing."""
    aside = path.with_name(f"{path.name}.aside")
    with aside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
