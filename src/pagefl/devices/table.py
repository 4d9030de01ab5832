"""A fleet from the user's own CSV: a row for each client, in the order of their numbers."""

import csv
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import numpy as np

from pagefl.core.arrays import Integers
from pagefl.core.errors import UserError, shown
from pagefl.core.files import regular

from .fleet import DAY, WATTS, Devices, Fleet

LARGEST = 200_000_000  # bytes of a file
NUMBERS = {  # column: the least, the most, and what it is without a column (None: it must be there)
    "seconds": (1e-12, 1e6, None),
    "up": (1.0, 1e15, None),
    "down": (1.0, 1e15, None),
    "watts": (0.0, 1e6, WATTS),
    "from": (0.0, DAY, 0.0),
    "hours": (1e-3, DAY, DAY),
}
CLASS, USUAL = "class", "device"
MOST_CLASSES, LONGEST = 20, 40


@dataclass(frozen=True)
class Table:
    devices: Devices  # of all clients
    classes: tuple[str, ...]

    @property
    def sleeps(self) -> bool:
        return bool((self.devices.hours < DAY).any())

    @property
    def facts(self) -> bytes:
        return b"".join(column.tobytes() for column in self.devices)

    def of(self, clients: Integers) -> Devices:
        return Devices._make(column[clients] for column in self.devices)


def held(fleet: Fleet, clients: int) -> Table:
    """The same devices, looked up once."""
    return Table(fleet.of(np.arange(clients)), fleet.classes)


def read(path: Path, clients: int) -> Table:
    """Seconds are those of the run's own model: they are not scaled."""
    try:
        regular(path, LARGEST)
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"devices.name = {path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"devices.name = {path}: not text in UTF-8; expected a CSV") from None
    try:
        header, *rows = [row for row in csv.reader(text.splitlines(), strict=True) if row] or [[]]
    except csv.Error as error:
        raise UserError(f"devices.name = {path}: not a valid CSV: {error}") from None
    header = [name.strip() for name in header]
    _check_header(path, header)
    if len(rows) != clients:
        raise UserError(
            f"devices.name = {path}: it has {len(rows)} devices, and the federation has {clients} clients; "
            "expected a row for each"
        )
    for line, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise UserError(f"{path}: row {line} has {len(row)} fields; expected {len(header)}")
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    numbers = {
        name: np.array([_number(path, name, line, text) for line, text in enumerate(columns[name], 2)])
        if name in columns
        else np.full(clients, usual)
        for name, (_, _, usual) in NUMBERS.items()
    }
    kinds = [name.strip() for name in columns.get(CLASS, [USUAL] * clients)]
    classes = _classes(path, kinds, numbers["seconds"])
    kind = np.array([classes.index(name) for name in kinds], np.int64)
    own = [numbers[name] for name in ("seconds", "up", "down", "watts")]
    return Table(Devices._make([*own, kind, numbers["from"], numbers["hours"]]), classes)


def _check_header(path: Path, header: list[str]) -> None:
    valid = (*NUMBERS, CLASS)
    for name in header:
        if name not in valid:
            raise UserError(
                f"{path}: there is no column {shown(name)} of devices; expected some of {', '.join(valid)}"
            )
    if len(set(header)) < len(header):
        raise UserError(f"{path}: a column is there twice; expected each once")
    if missing := [name for name, (_, _, usual) in NUMBERS.items() if usual is None and name not in header]:
        raise UserError(f"{path}: column {missing[0]} is missing; expected at least seconds, up and down")


def _number(path: Path, name: str, line: int, text: str) -> float:
    least, most, _ = NUMBERS[name]
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not isfinite(value) or not least <= value <= most:
        raise UserError(
            f"{path}: row {line}: {name} = {shown(text)}: expected a number from {least:g} to {most:g}"
        )
    return value


def _classes(path: Path, kinds: list[str], seconds: np.ndarray) -> tuple[str, ...]:
    """By the median of their devices, the fastest first."""
    names = sorted(set(kinds))
    if len(names) > MOST_CLASSES:
        raise UserError(f"{path}: there are {len(names)} classes; expected at most {MOST_CLASSES}")
    for name in names:
        if not name or len(name) > LONGEST or not name.isprintable():
            raise UserError(f"{path}: class = {shown(name)}: expected a name of 1 to {LONGEST} letters")
    of = np.array(kinds)
    return tuple(sorted(names, key=lambda name: float(np.median(seconds[of == name]))))
