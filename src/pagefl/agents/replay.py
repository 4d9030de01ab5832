"""Replay memory: one ring buffer of transitions per agent, stored in tensors."""

from typing import NamedTuple

import torch
from torch import Tensor


class Transitions(NamedTuple):
    states: Tensor  # [agents, batch, states]
    actions: Tensor
    rewards: Tensor  # [agents, batch]
    next_states: Tensor

    def standardised(self, mean: Tensor, spread: Tensor) -> "Transitions":
        return self._replace(rewards=(self.rewards - mean) / (spread + 1e-6))


class Replay:
    def __init__(self, agents: int, capacity: int, states: int, actions: int) -> None:
        self.capacity = capacity
        shape = (agents, capacity)
        self.tensors = {
            "states": torch.zeros(*shape, states),
            "actions": torch.zeros(*shape, actions),
            "rewards": torch.zeros(*shape),
            "next_states": torch.zeros(*shape, states),
            "written": torch.zeros(agents, dtype=torch.long),  # transitions written; the ring may wrap
        }

    def add(self, who: Tensor, states: Tensor, actions: Tensor, rewards: Tensor, next_states: Tensor) -> None:
        """Add one transition for each of these agents."""
        place = self.tensors["written"][who] % self.capacity
        values = {"states": states, "actions": actions, "rewards": rewards, "next_states": next_states}
        for name, value in values.items():
            self.tensors[name][who, place] = value.to(self.tensors[name])
        self.tensors["written"][who] += 1

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Load a replay memory of this or another capacity.

        A run may continue for more or fewer rounds than planned. Capacities may differ as long as all
        transitions fit into both.
        """
        both = min(tensors["states"].shape[1], self.capacity)
        if tensors["states"].shape[1] != self.capacity and int(tensors["written"].max()) > both:
            raise ValueError(
                f"a ring of {tensors['states'].shape[1]} transitions does not fit into one of {self.capacity}"
            )
        for name, value in tensors.items():
            if name == "written":
                self.tensors[name].copy_(value)
            else:
                self.tensors[name][:, :both] = value[:, :both]

    def filled(self) -> Tensor:
        return self.tensors["written"].clamp(max=self.capacity)

    def reward_moments(self, who: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of all stored rewards, each [agents, 1]."""
        held = torch.arange(self.capacity) < self.filled()[who, None]
        rewards = self.tensors["rewards"][who] * held
        count = held.sum(1, keepdim=True).clamp(min=1)
        mean = rewards.sum(1, keepdim=True) / count
        return mean, (((rewards - mean) * held).square().sum(1, keepdim=True) / count).sqrt()

    def sample(self, who: Tensor, chance: Tensor) -> Transitions:
        """Draw a batch for each agent. `chance`: uniform numbers in [0, 1), [agents, batch]."""
        places = (chance * self.filled()[who, None]).long()
        agent = who[:, None]
        return Transitions(
            *(self.tensors[name][agent, places] for name in ("states", "actions", "rewards", "next_states"))
        )
