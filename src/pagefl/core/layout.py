"""Parameters of an nn.Module <-> named columns of one flat row."""

from math import prod

import torch
from torch import Tensor, nn

from .errors import UserError

# A convolution's weight [out, in, height, width] is held as [height, width, in, out]: each tap is one
# matrix, see `plan`.
TAPS_FIRST = (2, 3, 1, 0)
VERSION = 2  # of the order of columns: rows of another one are not read


class Layout:
    """Which columns of a row hold which parameter.

    Frozen parameters stay in the module: nobody trains or sends them.
    """

    def __init__(self, module: nn.Module) -> None:
        parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not parameters:
            raise UserError(
                f"module {type(module).__name__} has no trainable parameter; it needs at least one"
            )
        dtypes = {p.dtype for p in parameters.values()}
        if len(dtypes) > 1:
            raise UserError(
                f"module {type(module).__name__} mixes parameter types {sorted(map(str, dtypes))}; use one"
            )
        self.dtype = dtypes.pop()
        self.shapes = {name: p.shape for name, p in parameters.items()}
        self.columns: dict[str, slice] = {}
        start = 0
        for name, shape in self.shapes.items():
            self.columns[name] = slice(start, start + prod(shape))
            start += prod(shape)
        self.width = start
        self.groups = self._groups()
        self.head = self.groups[-1]
        self.body = slice(0, self.head.start)

    def _groups(self) -> list[slice]:
        """Layers: the parameters of one submodule each, in the module's order. The last one is the head."""
        owners = [name.rpartition(".")[0] for name in self.columns]
        groups: dict[str, slice] = {}
        for owner, columns in zip(owners, self.columns.values(), strict=True):
            start = groups[owner].start if owner in groups else columns.start
            groups[owner] = slice(start, columns.stop)
        return list(groups.values())

    def within(self, columns: slice | None) -> list[str]:
        """The parameters that overlap these columns."""
        if columns is None:
            return list(self.columns)
        return [
            name
            for name, own in self.columns.items()
            if columns.start < own.stop and own.start < columns.stop
        ]

    def row(self, module: nn.Module) -> Tensor:
        parameters = dict(module.named_parameters())
        row = next(iter(parameters.values())).new_empty(self.width, dtype=self.dtype)
        for name, view in self.views(row).items():
            view.copy_(parameters[name].detach())
        return row

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """Every parameter of a row, or of each row of a stack, in its own shape and without a copy."""
        return {name: _shaped(rows[..., self.columns[name]], shape) for name, shape in self.shapes.items()}

    def flat(self, value: Tensor, stacked: bool = False) -> Tensor:
        """A parameter, or of a stack one for each row, as its columns hold it."""
        lead = int(stacked)
        if value.dim() - lead == 4:
            value = value.permute(*range(lead), *(lead + d for d in TAPS_FIRST))
        return value.reshape(*value.shape[:lead], -1)

    def fill(self, module: nn.Module, row: Tensor) -> nn.Module:
        """Write a row into a module, for people who want to use it."""
        parameters = dict(module.named_parameters())
        with torch.no_grad():
            for name, value in self.views(row).items():
                parameters[name].copy_(value)
        return module


def _shaped(columns: Tensor, shape: torch.Size) -> Tensor:
    """A view of a parameter's columns in the parameter's own shape."""
    lead = columns.dim() - 1
    if len(shape) != 4:
        return columns.view(*columns.shape[:-1], *shape)
    held = columns.view(*columns.shape[:-1], *(shape[d] for d in TAPS_FIRST))
    return held.permute(*range(lead), *(lead + TAPS_FIRST.index(d) for d in range(4)))
