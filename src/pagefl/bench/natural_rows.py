"""The rows path as it was before convolutions were held tap by tap: what plans are measured against."""

from torch import Tensor, nn

from pagefl.core.layout import Layout
from pagefl.core.training.model import RowModel


class NaturalLayout(Layout):
    """Holds every parameter as torch does, so that autograd's operands need no copy."""

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        return {
            name: rows[..., self.columns[name]].view(*rows.shape[:-1], *shape)
            for name, shape in self.shapes.items()
        }

    def flat(self, value: Tensor, stacked: bool = False) -> Tensor:
        return value.reshape(*value.shape[: int(stacked)], -1)


class NaturalRows(RowModel):
    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.layout = NaturalLayout(module)
