"""Reads files up to a size limit. A file larger than the original may be a decompression bomb."""

import json
from collections import Counter
from pathlib import Path
from typing import Any, Protocol

from pagefl.core.errors import UserError, shortened, shown
from pagefl.core.files import regular


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def read(file: Readable, most: int, name: str) -> bytes:
    content = file.read(most + 1)
    if len(content) > most:
        raise UserError(f"{name} is larger than {most / 1e6:.0f} MB, which the original is not; get it again")
    return content


def json_file(path: Path, most: int) -> Any:
    """The value in a JSON file. A key that is there twice, NaN and infinity are refused: JSON has neither."""
    try:
        regular(path, most)
        with path.open("rb") as file:
            return json.loads(
                read(file, most, str(path)), object_pairs_hook=_once_each, parse_constant=_no_number
            )
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    except RecursionError:
        raise UserError(f"{path} is not valid JSON: it is nested too deeply") from None
    except UserError as error:
        raise UserError(str(error) if str(path) in str(error) else f"{path} {error}") from None
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {shortened(str(error), 120)}") from None


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise UserError(f"has {shown(twice)} more than once in an object")
    return found


def _no_number(constant: str) -> None:
    raise UserError(f"holds {constant}, which is not valid JSON; every number must be finite")
