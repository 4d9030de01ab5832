"""Whether the game has converged: neither the models nor the pay-offs change any more."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tolerances:
    """Converged: over a window of rounds, each quantity's mean relative change is below its tolerance."""

    window: int = 50
    models: float = 1e-3  # of W, and of the personal models
    payoffs: float = 1e-2  # of the stage pay-offs of the server and of the clients


class Watch:
    """Remembers one window of changes. `tensors` is what of it a checkpoint has to hold."""

    def __init__(self, tolerances: Tolerances) -> None:
        self.tolerances = tolerances
        self.tensors = {
            "changes": torch.full((tolerances.window, 4), torch.inf, dtype=torch.float64),
            "rewards": torch.full((2,), torch.inf, dtype=torch.float64),
        }
        self.models: tuple[Tensor, ...] = ()

    def remember(self, *models: Tensor) -> None:
        """The shared and the personal models before the next round."""
        self.models = tuple(model.clone() for model in models)

    def converged(self, shared: Tensor, personal: Tensor, server_reward: float, client_reward: float) -> bool:
        """Called after a round, with the models and rewards that it made."""
        rewards = torch.tensor([server_reward, client_reward], dtype=torch.float64)
        moved = [_relative(now, before) for now, before in zip((shared, personal), self.models, strict=True)]
        paid = (rewards - self.tensors["rewards"]).abs() / rewards.abs().clamp(min=1e-12)
        changes = self.tensors["changes"]
        changes.copy_(torch.cat([changes[1:], torch.cat([torch.stack(moved), paid])[None]]))
        self.tensors["rewards"].copy_(rewards)
        self.remember(shared, personal)
        tolerance = torch.tensor(
            [self.tolerances.models, self.tolerances.models, self.tolerances.payoffs, self.tolerances.payoffs]
        )
        return bool((changes.mean(0) < tolerance).all())


def _relative(now: Tensor, before: Tensor) -> Tensor:
    change: Tensor = (now - before).norm() / now.norm().clamp(min=1e-12)
    return change.double()
