"""Task: a model and the data of a federation, under a name."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field

from torch import nn

from pagefl.core import rng
from pagefl.data.federated import FederatedData


@dataclass(frozen=True)
class Task:
    """`module`: an nn.Module, whose weights are the start, or a function that makes one from the run's seed."""

    name: str
    module: nn.Module | Callable[[], nn.Module]
    data: FederatedData
    settings: Mapping[str, float | int] = field(default_factory=dict)  # lr, epochs, batch_size … that suit it

    def fresh_module(self, seed: int) -> nn.Module:
        if isinstance(self.module, nn.Module):
            return deepcopy(self.module)
        with rng.torch_stream(seed, "initial model"):
            return self.module()
