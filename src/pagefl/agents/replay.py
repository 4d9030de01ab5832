"""Replay: every agent's own ring of transitions, in tensors."""

from typing import NamedTuple

import torch
from torch import Tensor


class Transitions(NamedTuple):
    states: Tensor  # [agents, batch, states]
    actions: Tensor
    rewards: Tensor  # [agents, batch]
    next_states: Tensor


class Replay:
    def __init__(self, agents: int, capacity: int, states: int, actions: int) -> None:
        self.capacity = capacity
        shape = (agents, capacity)
        self.tensors = {
            "states": torch.zeros(*shape, states),
            "actions": torch.zeros(*shape, actions),
            "rewards": torch.zeros(*shape),
            "next_states": torch.zeros(*shape, states),
            "written": torch.zeros(agents, dtype=torch.long),  # how many so far; the ring begins anew when it is full
        }

    def add(self, who: Tensor, states: Tensor, actions: Tensor, rewards: Tensor, next_states: Tensor) -> None:
        """One transition for each of these agents."""
        place = self.tensors["written"][who] % self.capacity
        values = {"states": states, "actions": actions, "rewards": rewards, "next_states": next_states}
        for name, value in values.items():
            self.tensors[name][who, place] = value.to(self.tensors[name])
        self.tensors["written"][who] += 1

    def filled(self) -> Tensor:
        return self.tensors["written"].clamp(max=self.capacity)

    def sample(self, who: Tensor, chance: Tensor) -> Transitions:
        """`chance`: [agents, batch] uniform in [0, 1)."""
        places = (chance * self.filled()[who, None]).long()
        agent = who[:, None]
        return Transitions(*(self.tensors[name][agent, places] for name in ("states", "actions", "rewards", "next_states")))
