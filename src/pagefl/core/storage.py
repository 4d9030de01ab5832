"""Storage: the rows that a block of clients holds, and which of them are one and the same."""

from collections.abc import Callable

import torch
from torch import Tensor

from . import large_rows
from .algorithm import Algorithm, Local, State
from .errors import UserError

Allocate = Callable[..., Tensor]  # (shape, dtype=…) -> zeros


class Storage:
    """Rows [clients, ...] by name: `kept.NAME`, `upload.NAME` and `personal`.

    What an algorithm declares as `same_rows` is held once: a hundred large models are not held twice.
    """

    def __init__(
        self, algorithm: Algorithm, row: Tensor, kept: State, uploads: State, clients: int, allocate: Allocate
    ) -> None:
        """`row`, `kept`, `uploads`: one client's model, kept state and upload, before the first round."""
        self.algorithm = type(algorithm).__name__
        first = {f"kept.{name}": value for name, value in kept.items()}
        first |= {"personal": row, **{f"upload.{name}": value for name, value in uploads.items()}}
        group = {name: names for names in algorithm.same_rows or () for name in names}
        self.rows: State = {}
        for name, value in first.items():
            held = next((self.rows[other] for other in group.get(name, ()) if other in self.rows), None)
            if held is None:
                held = allocate([clients, *value.shape], dtype=value.dtype)
                if not name.startswith("upload."):
                    held[:] = value
            self.rows[name] = held
        self.kept = self._part("kept.")
        self.uploads = self._part("upload.")
        self.personal = self.rows["personal"]

    def put(self, ids: Tensor, chosen: Tensor | slice, local: Local) -> None:
        """Write the chosen rows of a stack's outcome; `ids` are their clients' positions."""
        made = named(local)
        written: dict[int, Tensor] = {}
        for name, rows in made.items():
            home = self.rows[name]
            earlier = written.setdefault(id(home), rows)
            if earlier is rows and len(ids) == 1:  # no index is looked up for each number
                large_rows.copy(rows[chosen][0].flatten(), home[int(ids)].view(-1))
            elif earlier is rows:
                home[ids] = rows[chosen]
            elif not torch.equal(earlier[chosen], rows[chosen]):
                raise UserError(
                    f"{self.algorithm}.same_rows says that {name} equals other rows, but local() made it "
                    "differ"
                )

    def _part(self, prefix: str) -> State:
        return {
            name.removeprefix(prefix): rows for name, rows in self.rows.items() if name.startswith(prefix)
        }


def named(local: Local) -> State:
    """All rows of an outcome, by the names that storage uses."""
    kept = {f"kept.{name}": rows for name, rows in local.kept.items()}
    return {
        **kept,
        "personal": local.personal,
        **{f"upload.{name}": rows for name, rows in local.upload.items()},
    }
