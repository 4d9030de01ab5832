"""PAGE with one policy for all clients: a round brings as many lessons as it has clients.

A client is paid by how much its training lowered its own loss, and compared with the others of its round: all trained the
same model, so what is left is what it did differently. What a single client does hardly changes the shared model, so there
is no future to weigh, and a lesson is whole in its own round. What smaller steps do to the shared model no client can find
out by itself, and who looks a few rounds ahead shrinks them too soon: when to do so for good is not learned, the last rounds
of a run are a landing.
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

from .players import Count, Follower, Leaders, Part, Positive, Seen, Setup, Wait, Worth
from .rules import Floats, Integers, Ranges
from .scoring import Scoring

STATES, ACTIONS = 2, 2  # accuracy and value of the shared model; lr, epochs
LESSON = [STATES, ACTIONS, 1, 1]  # state, action, reward, whether it is one
VALUE = 5.0  # by which a value, minus a log loss, is divided to be of the size of an accuracy
FLOOR = 0.01  # added to a loss before its logarithm: a client with one class must not outweigh all others
EDGE = 0.9  # the farthest out that a policy begins that is to learn: beyond it tanh is flat
STEEPEST = 0.1  # by which part lr falls from round to round of a landing at most: of a short run it takes little
KEPT = 200  # lessons of a round that the server keeps: more clients must not make its memory shorter
RECENT = 30  # rounds that are remembered: what pays changes as the shared model gets better
OWN_BATCH = 32  # of a client that learns from its own lessons alone


@dataclass(frozen=True)
class Sharing:
    """How the shared policy explores, learns and lands."""

    ddpg: DdpgSettings
    noise: float
    explore: float  # the share of rounds, from the start, in which it explores and learns
    warm_up: int  # rounds before anything is learned: a critic that has seen little sends the policy anywhere
    updates: int
    landing: float  # the share of rounds at the end in which lr falls to its least, when demand is 1:1


class SharedLeaders(ABC):
    """What both ways of sharing have in common: clients act by what they are sent, and give back what it was worth."""

    sees = True

    def __init__(self, setup: Setup, ranges: Ranges, sharing: Sharing, agents: int, lessons: int) -> None:
        """`lessons`: of a round, that each agent keeps."""
        self.setup, self.ranges, self.sharing = setup, ranges, sharing
        needed = 2 * networks.numbers_needed(STATES, ACTIONS, sharing.ddpg.hidden)
        draw = torch.from_numpy(2 * rng.uniforms(rng.keys(setup.seed, "shared policy", 0, [0]), needed) - 1).float()
        self.ddpg = Ddpg(draw.expand(agents, -1), STATES, ACTIONS, RECENT * lessons, sharing.ddpg)
        self.until = sharing.explore * setup.rounds
        self.learns = self.until > sharing.warm_up  # or there would be nothing to learn from
        edge = EDGE if self.learns else 1 - 1e-6
        usual = torch.from_numpy(ranges.action(setup.lr, setup.epochs)).float().clamp(-edge, edge)
        for net in ("actor", "target_actor"):
            self.ddpg.nets[net]["bias2"][:] = usual.atanh()
        self.lesson = torch.zeros(setup.clients, sum(LESSON))
        self.frozen = False

    def lead(self, round: int, who: Integers, seen: Seen | None) -> tuple[Floats, Integers, Losses | None]:
        assert seen is not None
        value = -np.log(seen.loss + FLOOR)
        state = torch.from_numpy(np.stack([seen.accuracy, value / VALUE], axis=1)).float()
        action = networks.act(self._policy, state[None])[0]
        demand = seen.bias.server / (seen.bias.server + seen.bias.clients)
        share = self._landing(demand)
        landed = min(1.0, max(0.0, 1 - (1 - round / self.setup.rounds) / share)) if share else 0.0
        explores = self.learns and round <= self.until and not landed and not self.frozen
        if explores:
            keys = rng.keys(self.setup.seed, "exploring", round, (self.setup.first + who).tolist())
            action = (action + self.sharing.noise * torch.from_numpy(rng.normals(keys, ACTIONS)).float()).clamp(-1, 1)
        earned, whole = torch.full([len(who), 1], torch.nan), torch.full([len(who), 1], float(explores))
        self.lesson[torch.from_numpy(who)] = torch.cat([state, action, earned, whole], dim=1)
        moves = action.double().numpy()
        lr = self.ranges.lr(moves[:, 0])
        depth = min(1.0, 0.5 + demand)  # clients in demand keep steps that personalise
        least = np.maximum((self.ranges.lr_min / lr) ** depth, np.exp(-STEEPEST * share * self.setup.rounds))
        return lr * least**landed, self.ranges.epochs(moves[:, 1]), None

    def learn(self, who: Integers, worth: Worth) -> None:
        clients = torch.from_numpy(who)
        value = torch.from_numpy(-np.log(worth.given + FLOOR)).float()
        self.lesson[clients, STATES + ACTIONS] = value - VALUE * self.lesson[clients, 1]

    def _landing(self, demand: float) -> float:
        """The share of rounds that it takes: more when either side is in demand, since small steps lift both models at once,
        and half as much more for clients. All for the shared model, it follows on exploring."""
        usual, tipped = self.sharing.landing, 2 * demand - 1
        return usual + max(tipped, -tipped / 2) * max(0.0, 1 - self.sharing.explore - usual) if usual else 0.0

    @property
    @abstractmethod
    def _policy(self) -> networks.Parameters:
        """What clients were sent, as the actor of one agent."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        return self.ddpg.tensors

    def load(self, tensors: dict[str, Tensor]) -> None:
        for name, value in self.tensors.items():
            value.copy_(tensors[name])

    def freeze(self) -> None:
        self.frozen = True


class SharedExperience(SharedLeaders):
    """Clients send the few numbers of their lesson; the server learns from everybody's and sends the policy."""

    def __init__(self, setup: Setup, ranges: Ranges, sharing: Sharing) -> None:
        super().__init__(setup, ranges, sharing, agents=1, lessons=min(KEPT, setup.clients))

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
        if not len(rows):
            return None
        if len(rows) > KEPT:
            chosen = rng.stream(self.setup.seed, "kept lessons", round).choice(len(rows), KEPT, replace=False)
            rows = rows[torch.from_numpy(np.sort(chosen))]
        states, actions, rewards, _ = torch.split(rows, LESSON, dim=1)
        self.ddpg.replay.extend(states, actions, (rewards - rewards.mean())[:, 0], states)
        if round <= self.sharing.warm_up:
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
        super().__init__(setup, ranges, sharing, agents=setup.clients, lessons=1)
        self.agent = {  # what only steadies learning (targets, moments) stays at home
            (net, part): value[0].clone() for net in ("actor", "critic") for part, value in self.ddpg.nets[net].items()
        }
        self.round = 0

    @property
    def _policy(self) -> networks.Parameters:
        return {part: value[None] for (net, part), value in self.agent.items() if net == "actor"}

    def lead(self, round: int, who: Integers, seen: Seen | None) -> tuple[Floats, Integers, Losses | None]:
        self.round = round
        return super().lead(round, who, seen)

    def learn(self, who: Integers, worth: Worth) -> None:
        super().learn(who, worth)
        clients = torch.from_numpy(who)
        for (net, part), value in self.agent.items():
            self.ddpg.nets[net][part][clients] = value
        rows = self.lesson[clients]
        whole = (rows[:, -1] > 0) & rows.isfinite().all(1)
        able = clients[whole]
        if not len(able):
            return
        states, actions, rewards, _ = torch.split(rows[whole], LESSON, dim=1)
        self.ddpg.replay.add(able, states, actions, rewards[:, 0], states)
        if self.round <= self.sharing.warm_up:
            return
        moments = self.ddpg.replay.reward_moments(able)
        numbers = (self.setup.first + able.numpy()).tolist()
        for step in range(self.sharing.updates):
            keys = rng.keys(self.setup.seed, f"own minibatch {step}", self.round, numbers)
            batch = self.ddpg.replay.sample(able, torch.from_numpy(rng.uniforms(keys, OWN_BATCH)))
            self.ddpg.update(able, batch.standardised(*moments))

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
    noise: Positive = 0.5
    explore: Part = 0.1
    warm_up: Wait = 10
    updates: Count = 10
    batch_size: Count = 256
    landing: Part = 0.2
    scoring_lr: Positive = 1e-2
    temperature: Positive = 1.0

    def sides(self, setup: Setup) -> tuple[Leaders, Follower]:
        ranges = Ranges(self.lr_min, self.lr_max, self.epochs_max, self.temperature)
        # Without a future there is nothing for targets to steady.
        ddpg = DdpgSettings(self.actor_lr, self.critic_lr, tau=1.0, gamma=0.0, batch_size=self.batch_size, hidden=(64, 64))
        sharing = Sharing(ddpg, self.noise, self.explore, self.warm_up, self.updates, self.landing)
        kind = SharedExperience if self.share == "experience" else SharedWeights
        return kind(setup, ranges, sharing), Scoring(setup, ranges, self.scoring_lr)
