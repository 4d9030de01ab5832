"""Task: a model and the data of a federation, under a name."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import cached_property

from torch import nn

from pagefl.core import rng
from pagefl.core.examples import Splits


class Task:
    def __init__(
        self,
        name: str,
        module: nn.Module | Callable[[], nn.Module],
        data: Splits | Callable[[], Splits],
        settings: Mapping[str, float | int] | None = None,
    ) -> None:
        """`module`: an nn.Module, whose weights are the start, or a function that makes one. `data`: they, or a function
        that makes them: a node, which has data of its own, needs the model alone. `settings`: lr, epochs … that suit it."""
        self.name, self.module, self._data, self.settings = name, module, data, settings or {}

    @cached_property
    def data(self) -> Splits:
        return self._data() if callable(self._data) else self._data

    def fresh_module(self, seed: int) -> nn.Module:
        if isinstance(self.module, nn.Module):
            return deepcopy(self.module)
        with rng.torch_stream(seed, "initial model"):
            return self.module()
