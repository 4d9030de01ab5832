"""PAGE with one policy for all clients: a round brings as many lessons as it has clients.

Everybody explores in the same direction in the same round, since what a learning rate does to the shared model shows only
when all use it. A client is paid by its own model's training loss. The shared model's loss falls as soon as steps become
smaller, and progress pays for it later, so a learner that looks a few rounds ahead is led astray by it. When to make steps
small for good is therefore not learned: the last rounds of a run are a landing.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pagefl.agents import networks
from pagefl.agents.ddpg import Ddpg, DdpgSettings, Losses
from pagefl.core import rng

from .players import Count, Follower, Leaders, NotNegative, Part, Positive, Seen, Setup, Worth
from .rules import Floats, Integers, Ranges
from .scoring import Scoring

STATES, ACTIONS = 3, 2  # accuracy and value of the shared model, demand for it; lr, epochs
LESSON = [STATES, ACTIONS, 1, STATES, 1]  # state, action, reward, next state, whether there is one
FLOOR = 0.01  # added to a loss before its logarithm: a client with one class must not outweigh all others
EDGE = 0.9  # the farthest out that a policy begins: beyond it tanh is flat and nothing can be learned
KEPT = 200  # lessons of a round that the server keeps: more clients must not make its memory shorter
WAIT = 3  # rounds before anything is learned: two lessons have no spread to speak of
OWN_BATCH = 32  # of a client that learns from its own lessons alone


@dataclass(frozen=True)
class Sharing:
    """How the shared policy explores, learns and lands."""

    ddpg: DdpgSettings
    noise: float
    explore: float  # the share of rounds, from the start and from every change of demand, in which it explores and learns
    updates: int
    caution: float  # what it costs to be away from the rule's own settings, by the squared distance
    landing: float  # the share of rounds at the end in which lr falls to its least, when demand is 1:1
    replay: int = 60_000


class SharedLeaders(ABC):
    """What both ways of sharing have in common: clients act by what they are sent, and give back what it was worth."""

    sees = True

    def __init__(self, setup: Setup, ranges: Ranges, sharing: Sharing, agents: int, capacity: int) -> None:
        self.setup, self.ranges, self.sharing = setup, ranges, sharing
        needed = 2 * networks.numbers_needed(STATES, ACTIONS, sharing.ddpg.hidden)
        draw = torch.from_numpy(2 * rng.uniforms(rng.keys(setup.seed, "shared policy", 0, [0]), needed) - 1).float()
        self.ddpg = Ddpg(draw.expand(agents, -1), STATES, ACTIONS, capacity, sharing.ddpg)
        self.usual = torch.from_numpy(ranges.action(setup.lr, setup.epochs)).float().clamp(-EDGE, EDGE)
        for net in ("actor", "target_actor"):
            self.ddpg.nets[net]["bias2"][:] = self.usual.atanh()
        clients = setup.clients
        self.waiting = {  # what the next look at the shared model makes a lesson
            "state": torch.zeros(clients, STATES),
            "action": torch.zeros(clients, ACTIONS),
            "own": torch.zeros(clients),
            "ready": torch.zeros(clients, dtype=torch.bool),
        }
        self.lesson = torch.zeros(clients, sum(LESSON))
        self.demand, self.since = torch.zeros(1), torch.zeros(1, dtype=torch.long)  # for the shared model, since which round
        self.frozen = False

    def lead(self, round: int, who: Integers, seen: Seen | None) -> tuple[Floats, Integers, Losses | None]:
        assert seen is not None
        demand = seen.bias.server / (seen.bias.server + seen.bias.clients)
        if not torch.allclose(self.demand, torch.tensor([demand])):
            self.demand[0], self.since[0] = demand, round - 1
        value = -np.log(seen.loss + FLOOR)
        state = torch.from_numpy(np.stack([seen.accuracy, value / 5, np.full(len(who), demand)], axis=1)).float()
        clients = torch.from_numpy(who)
        self._complete(clients, state)
        action = networks.act(self._policy, state[None])[0]
        losses = self._study(round, clients)
        landed = self._landed(round, demand)
        explores = 0.0 if self.frozen or landed else self._explores(round)
        if explores:
            drawn = rng.normals(rng.keys(self.setup.seed, "shared noise", round, [0]), ACTIONS)  # the same for everybody
            action = (action + explores * self.sharing.noise * torch.from_numpy(drawn).float()).clamp(-1, 1)
        self.waiting["state"][clients], self.waiting["action"][clients] = state, action
        self.waiting["own"][clients], self.waiting["ready"][clients] = torch.nan, explores > 0
        moves = action.double().numpy()
        lr = self.ranges.lr(moves[:, 0])
        depth = min(1.0, 0.5 + demand)  # clients in demand keep steps that personalise
        return lr * (self.ranges.lr_min / lr) ** (depth * landed), self.ranges.epochs(moves[:, 1]), losses

    def learn(self, who: Integers, worth: Worth) -> None:
        self.waiting["own"][torch.from_numpy(who)] = torch.from_numpy(-np.log(worth.loss + FLOOR)).float()

    def _complete(self, clients: Tensor, state: Tensor) -> None:
        was = {name: held[clients] for name, held in self.waiting.items()}
        reward = was["own"] - self.sharing.caution * (was["action"] - self.usual).square().sum(1)
        ready = was["ready"] & reward.isfinite()  # who was quarantined has earned nothing
        parts = [was["state"], was["action"], reward.nan_to_num()[:, None], state, ready[:, None].float()]
        self.lesson[clients] = torch.cat(parts, dim=1)

    def _explores(self, round: int) -> float:
        """From one to zero: lessons of those who do not explore say nothing about other actions, and a critic would guess."""
        rounds = self.sharing.explore * self.setup.rounds
        return max(0.0, 1 - (round - int(self.since)) / rounds) if rounds else 0.0

    def _landed(self, round: int, demand: float) -> float:
        """From zero where the landing begins to one in the last round. The shared model in demand begins it earlier."""
        share = max(1.0, 2 * demand) * self.sharing.landing
        return max(0.0, 1 - (1 - round / self.setup.rounds) / share) if share else 0.0

    @property
    @abstractmethod
    def _policy(self) -> networks.Parameters:
        """What clients were sent, as the actor of one agent."""

    def _study(self, round: int, clients: Tensor) -> Losses | None:
        """What these clients learn by themselves from their last lesson: nothing."""
        return None

    @property
    def tensors(self) -> dict[str, Tensor]:
        own = {**self.waiting, "demand": self.demand, "since": self.since}
        return {**self.ddpg.tensors, **{f"waiting.{name}": value for name, value in own.items()}}

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.ddpg.replay.load({n.removeprefix("replay."): value for n, value in tensors.items() if n.startswith("replay.")})
        for name, value in self.tensors.items():
            if not name.startswith("replay."):
                value.copy_(tensors[name])

    def freeze(self) -> None:
        self.frozen = True


class SharedExperience(SharedLeaders):
    """Clients send the few numbers of their last lesson; the server learns from everybody's and sends the policy."""

    def __init__(self, setup: Setup, ranges: Ranges, sharing: Sharing) -> None:
        kept = min(KEPT, setup.clients) * setup.rounds
        super().__init__(setup, ranges, sharing, agents=1, capacity=min(sharing.replay, kept))

    @property
    def _policy(self) -> networks.Parameters:
        return self.ddpg.nets["actor"]

    @property
    def shared(self) -> dict[str, Tensor]:
        return {f"policy.{name}": value[0] for name, value in self._policy.items()}

    def lessons(self, who: Integers) -> dict[str, Tensor]:
        return {"lesson": self.lesson[torch.from_numpy(who)]}

    def share(self, round: int, lessons: Mapping[str, Tensor]) -> Losses | None:
        if self.frozen:
            return None
        rows = lessons["lesson"]
        rows = rows[(rows[:, -1] > 0) & rows.isfinite().all(1)]
        if len(rows) > KEPT:
            chosen = rng.stream(self.setup.seed, "kept lessons", round).choice(len(rows), KEPT, replace=False)
            rows = rows[torch.from_numpy(np.sort(chosen))]
        states, actions, rewards, following, _ = torch.split(rows, LESSON, dim=1)
        self.ddpg.replay.extend(states, actions, rewards[:, 0], following)
        if not len(rows) or round <= WAIT:
            return None
        size = self.sharing.ddpg.batch_size
        everybody = torch.zeros(1, dtype=torch.long)
        moments = self.ddpg.replay.reward_moments(everybody)
        keys = rng.keys(self.setup.seed, "shared minibatch", round, range(self.sharing.updates))
        for chance in torch.from_numpy(rng.uniforms(keys, size)):
            batch = self.ddpg.replay.sample(everybody, chance[None])
            losses = self.ddpg.update(everybody, batch.standardised(*moments))
        return losses


class SharedWeights(SharedLeaders):
    """Every client trains the agent it is sent on its own lessons, which stay with it; the server averages the agents."""

    def __init__(self, setup: Setup, ranges: Ranges, sharing: Sharing) -> None:
        super().__init__(setup, ranges, sharing, agents=setup.clients, capacity=min(sharing.replay, setup.rounds))
        self.agent = {  # what only steadies learning (targets, moments) stays at home
            (net, part): value[0].clone() for net in ("actor", "critic") for part, value in self.ddpg.nets[net].items()
        }

    @property
    def _policy(self) -> networks.Parameters:
        return {part: value[None] for (net, part), value in self.agent.items() if net == "actor"}

    def _study(self, round: int, clients: Tensor) -> Losses | None:
        if self.frozen:
            return None
        for (net, part), value in self.agent.items():
            self.ddpg.nets[net][part][clients] = value
        states, actions, rewards, following, ready = torch.split(self.lesson[clients], LESSON, dim=1)
        new = ready[:, 0] > 0
        self.ddpg.replay.add(clients[new], states[new], actions[new], rewards[new, 0], following[new])
        able = clients[new]
        if not len(able) or round <= WAIT:
            return None
        moments = self.ddpg.replay.reward_moments(able)
        numbers = (self.setup.first + able.numpy()).tolist()
        for step in range(self.sharing.updates):
            keys = rng.keys(self.setup.seed, f"own minibatch {step}", round, numbers)
            batch = self.ddpg.replay.sample(able, torch.from_numpy(rng.uniforms(keys, OWN_BATCH)))
            losses = self.ddpg.update(able, batch.standardised(*moments))
        return losses

    @property
    def shared(self) -> dict[str, Tensor]:
        return {f"agent.{net}.{part}": value for (net, part), value in self.agent.items()}

    def lessons(self, who: Integers) -> dict[str, Tensor]:
        clients = torch.from_numpy(who)
        return {f"agent.{net}.{part}": self.ddpg.nets[net][part][clients] for net, part in self.agent}

    def share(self, round: int, lessons: Mapping[str, Tensor]) -> Losses | None:
        if self.frozen:
            return None
        good = torch.stack([rows.flatten(1).isfinite().all(1) for rows in lessons.values()]).all(0)
        if bool(good.any()):
            for name, value in self.shared.items():
                value.copy_(lessons[name][good].mean(0))
        return None

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {**super().tensors, **self.shared}


@dataclass(frozen=True)
class SharedPlayers:
    """PAGE with one policy that all clients share, by experience or by weights, and a server that scores uploads."""

    share: Literal["experience", "weights"] = "experience"
    lr_min: Positive = 1e-3
    lr_max: Positive = 0.1
    epochs_max: Count = 20
    critic_lr: Positive = 1e-3
    actor_lr: Positive = 5e-5
    tau: Positive = 0.01
    gamma: Positive = 0.9
    noise: Positive = 0.3
    explore: Part = 0.3
    updates: Count = 10
    batch_size: Count = 256
    caution: NotNegative = 0.01
    landing: Part = 0.2
    scoring_lr: Positive = 1e-2
    temperature: Positive = 1.0

    def sides(self, setup: Setup) -> tuple[Leaders, Follower]:
        ranges = Ranges(self.lr_min, self.lr_max, self.epochs_max, self.temperature)
        ddpg = DdpgSettings(self.actor_lr, self.critic_lr, self.tau, self.gamma, self.batch_size, (64, 64))
        sharing = Sharing(ddpg, self.noise, self.explore, self.updates, self.caution, self.landing)
        kind = SharedExperience if self.share == "experience" else SharedWeights
        return kind(setup, ranges, sharing), Scoring(setup, ranges, self.scoring_lr)
