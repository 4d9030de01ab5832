"""Checks the files of a saved dataset before `datasets` opens them: somebody else may have made them."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from pagefl.core.errors import UserError
from pagefl.core.files import regular_below

# Places of fields in the flatbuffers of Arrow's format (Message.fbs).
HEADER, DATA, COMPRESSION = 2, 1, 3
LARGEST = 10**8  # bytes of a JSON file


def check_files(folder: Path) -> None:
    """Raise if a file is not regular, if a name leads out of the folder, or if a file would grow when it is
    read."""
    for path, facts in list(regular_below(folder)):
        if path.suffix == ".json":
            if facts.st_size > LARGEST:
                raise UserError(f"{path} has {facts.st_size} bytes; expected at most {LARGEST}")
            for name in _names(json.loads(path.read_bytes())):
                if not isinstance(name, str) or name in ("", ".", "..") or {"/", "\\"} & set(name):
                    raise UserError(f"{path} names {name!r}; expected the name of a file or folder beside it")
        elif path.suffix == ".arrow" and _is_compressed(path):
            raise UserError(f"{path} is compressed; expected an uncompressed file, as save_to_disk writes it")


def _names(content: object) -> Iterator[object]:
    """Files that state.json names, and folders that dataset_dict.json names."""
    splits, files = (
        content.get(key) if isinstance(content, dict) else None for key in ("splits", "_data_files")
    )
    yield from splits if isinstance(splits, list) else ()
    for file in files if isinstance(files, list) else ():
        yield file.get("filename") if isinstance(file, dict) else file


def _is_compressed(path: Path) -> bool:
    """Whether any batch is compressed. It may grow a thousandfold when it is read."""
    with pa.memory_map(str(path)) as file:
        for message in pa.ipc.MessageReader.open_stream(file):
            content = memoryview(message.metadata)
            (root,) = struct.unpack_from("<I", content)
            batch = _inner(content, root, HEADER) if message.type in ("record batch", "dictionary") else None
            if batch and message.type == "dictionary":
                batch = _inner(content, batch, DATA)
            if batch and _inner(content, batch, COMPRESSION):
                return True
    return False


def _inner(content: memoryview, table: int, field: int) -> int | None:
    """Where in a flatbuffer a table's inner table begins; None if it has none."""
    (back,) = struct.unpack_from("<i", content, table)
    (length,) = struct.unpack_from("<H", content, table - back)
    if 4 + 2 * field >= length:
        return None
    (offset,) = struct.unpack_from("<H", content, table - back + 4 + 2 * field)
    return table + offset + int(struct.unpack_from("<I", content, table + offset)[0]) if offset else None
