"""Updates: what clients uploaded, measured from what a client would upload that has not trained."""

from collections.abc import Iterator, Mapping
from functools import cached_property

import torch
from torch import Tensor

from pagefl.core.algorithm import State
from pagefl.core.arrays import Floats

COLUMNS = 1 << 15  # looked at together, so that large models are not held twice


class Updates:
    """A client's update is the whole of its upload: all arrays, one after the other."""

    def __init__(self, uploads: Mapping[str, Tensor], origin: State) -> None:
        """`uploads`: a row for each client. `origin`: what is subtracted, where there is an entry."""
        self.uploads, self.origin = uploads, origin

    def columns(self, name: str) -> Iterator[Tensor]:
        """The updates of one array, [clients, some columns] at a time."""
        rows, origin = self.uploads[name].flatten(1), self.origin.get(name)
        for start in range(0, rows.shape[1], COLUMNS):
            part = rows[:, start : start + COLUMNS].double()
            yield part if origin is None else part - origin.flatten()[start : start + COLUMNS].double()

    @cached_property
    def gram(self) -> Floats:
        """The inner products of all updates, [clients, clients]. Norms and distances follow from them."""
        parts = (part for name in self.uploads for part in self.columns(name))
        return torch.stack([sum_of_products(part) for part in parts]).sum(0).numpy()


def sum_of_products(part: Tensor) -> Tensor:
    return (part @ part.T).cpu()
