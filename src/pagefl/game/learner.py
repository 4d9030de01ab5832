"""Learner: one side's stacked DDPG agents. They observe a state and learn, act, and are told their reward."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pagefl.agents import networks
from pagefl.agents.ddpg import Ddpg, DdpgSettings, Losses
from pagefl.agents.noise import OuNoise, fading
from pagefl.agents.replay import Transitions
from pagefl.core import memory, rng
from pagefl.core.arrays import Floats, Integers

from .multipliers import LARGEST, Charge

NEAR = 0.2  # width of the range of prices around the present one, from which half of a minibatch has its own

# rewards as they are, their logarithm, or by the mean and spread of the replay
Scale = Literal["raw", "log", "standard"]


@dataclass(frozen=True)
class Learning:
    """How a side explores and learns."""

    ddpg: DdpgSettings
    warm_up: int = 36  # rounds of random play that fill the replay
    explore_rounds: int = 500  # over which the noise fades; 0: none after the warm-up
    rewards: Scale = "raw"
    replay: int = 60_000


class Learner:
    """Everything that a round changes is in `tensors`."""

    def __init__(
        self,
        name: str,
        agents: int,
        states: int,
        actions: int,
        rounds: int,
        seed: int,
        learning: Learning,
        first: int = 0,
    ) -> None:
        """`first`: the number of the first agent, by which its random streams go."""
        self.name, self.seed, self.learning, self.first = name, seed, learning, first
        needed = 2 * networks.numbers_needed(states, actions, learning.ddpg.hidden)
        ring = min(learning.replay, rounds)  # one transition a round: a longer one would only take room
        # four copies, two draws; and the replay
        size = agents * (28 * needed + 4 * ring * (2 * states + actions + 2))
        memory.needs(size, f"{agents} {name} agents with {states} inputs", "use fewer clients or rounds")
        draw = torch.from_numpy(
            2 * rng.uniforms(self._keys("initial agent", 0, np.arange(agents)), needed) - 1
        ).float()
        self.ddpg = Ddpg(draw, states, actions, ring, learning.ddpg)
        self.waiting = {  # the transition that the next observation completes
            "state": torch.zeros(agents, states),
            "action": torch.zeros(agents, actions),
            "reward": torch.zeros(agents),
            "ready": torch.zeros(agents, dtype=torch.bool),
        }
        self.noise = torch.zeros(agents, actions)
        self.frozen = False  # plays its strategy as it stands

    @property
    def tensors(self) -> dict[str, Tensor]:
        waiting = {f"waiting.{name}": value for name, value in self.waiting.items()}
        return {**self.ddpg.tensors, **waiting, "noise": self.noise}

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.ddpg.replay.load(
            {n.removeprefix("replay."): value for n, value in tensors.items() if n.startswith("replay.")}
        )
        for name, value in self.tensors.items():
            if not name.startswith("replay."):
                value.copy_(tensors[name])

    def observe(
        self, round: int, who: Integers, state: Floats, charge: Charge | None = None
    ) -> Losses | None:
        """Complete the last transition by the state that followed it, and learn.

        Losses are NaN for who did not learn. `charge`: what these agents pay for their actions; the last
        number of a state is then its weight.
        """
        if self.frozen:
            return None
        agents = torch.from_numpy(who)
        self._complete(agents, torch.from_numpy(state).float())
        return self._learn(round, agents, charge) if round > self.learning.warm_up else None

    def act(self, round: int, who: Integers, state: Floats) -> Floats:
        agents, seen = torch.from_numpy(who), torch.from_numpy(state).float()
        if self.frozen:
            return np.asarray(self.ddpg.act(agents, seen).double().numpy())
        if round > self.learning.warm_up:
            action = (self.ddpg.act(agents, seen) + self._explore(round, agents)).clamp(-1, 1)
        else:
            action = torch.from_numpy(
                2 * rng.uniforms(self._keys("warm-up", round, who), self.ddpg.actions) - 1
            ).float()
        self.waiting["state"][agents], self.waiting["action"][agents] = seen, action
        return np.asarray(action.double().numpy())

    def reward(self, who: Integers, rewards: Floats) -> None:
        """What the last action of these agents was worth."""
        if self.frozen:
            return
        agents = torch.from_numpy(who)
        value = torch.from_numpy(rewards).float()
        self.waiting["reward"][agents] = value.log() if self.learning.rewards == "log" else value
        self.waiting["ready"][agents] = True

    def _complete(self, agents: Tensor, seen: Tensor) -> None:
        ready = self.waiting["ready"][agents]
        who = agents[ready]
        states, actions, rewards = (self.waiting[name][who] for name in ("state", "action", "reward"))
        self.ddpg.replay.add(who, states, actions, rewards, seen[ready])
        self.waiting["ready"][agents] = False

    def spread(self, who: Integers) -> Floats:
        """Of the rewards of these agents so far."""
        return np.asarray(self.ddpg.replay.reward_moments(torch.from_numpy(who))[1][:, 0].double().numpy())

    def _learn(self, round: int, agents: Tensor, charge: Charge | None) -> Losses | None:
        size = self.learning.ddpg.batch_size
        enough = self.ddpg.replay.filled()[agents] >= min(size, self.ddpg.replay.capacity)
        able = agents[enough]
        if not len(able):
            return None
        chance = torch.from_numpy(rng.uniforms(self._keys("minibatch", round, able.numpy()), size))
        batch = self.ddpg.replay.sample(able, chance)
        if charge or self.learning.rewards == "standard":
            batch = batch.standardised(*self.ddpg.replay.reward_moments(able))
        if charge:
            batch = self._charged(round, able.numpy(), batch, charge, enough.numpy().nonzero()[0])
        losses = self.ddpg.update(able, batch)
        learned = torch.isin(agents, able)
        return Losses(
            *(torch.full([len(agents)], torch.nan).masked_scatter(learned, part) for part in losses)
        )

    def _charged(
        self, round: int, able: Integers, batch: Transitions, charge: Charge, places: Integers
    ) -> Transitions:
        """The same transitions at other prices: half of them near the present one, half at any. Those at
        which they were played are long past, and an agent shall know what to do when its price changes."""
        count = batch.rewards.shape[1]
        chance = rng.uniforms(self._keys("prices", round, able), count)
        near = charge.weight[places, None] + NEAR * (chance - 0.5)
        drawn = np.where(np.arange(count) < count // 2, near.clip(0, LARGEST), LARGEST * chance)
        weight = torch.from_numpy(drawn).float()
        states, following = batch.states.clone(), batch.next_states.clone()
        states[..., -1], following[..., -1] = weight, weight
        rewards = (1 - weight) * batch.rewards - weight * charge.cost(places, batch.actions)
        return Transitions(states, batch.actions, rewards, following)

    def _explore(self, round: int, agents: Tensor) -> Tensor:
        share = fading(round, self.learning.explore_rounds) if self.learning.explore_rounds else 0.0
        if not share:
            return torch.zeros(len(agents), self.ddpg.actions)
        normal = rng.normals(self._keys("noise", round, agents.numpy()), self.ddpg.actions)
        self.noise[agents] = OuNoise().step(self.noise[agents], torch.from_numpy(normal).float())
        return share * self.noise[agents]

    def _keys(self, purpose: str, round: int, who: Integers) -> np.ndarray:
        return rng.keys(self.seed, f"{self.name} {purpose}", round, (self.first + who).tolist())
