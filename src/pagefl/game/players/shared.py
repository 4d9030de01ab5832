"""PAGE with one policy for all clients: a round brings as many transitions as it has clients.

A client's reward is how much its training lowered its own loss, compared with the other clients of its round:
all of them trained the same model, so what is left is what each did differently. One client's move hardly
changes the shared model, so there is no future to weigh, and a transition is complete in its own round. No
client can find out by itself what smaller steps do to the shared model, and agents that look a few rounds
ahead shrink them too soon. So the learning-rate decay at the end of a run is not learned: it is a schedule.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from pagefl.agents import networks
from pagefl.agents.ddpg import Ddpg, DdpgSettings, Losses
from pagefl.core import rng
from pagefl.core.algorithm import State
from pagefl.core.arrays import Floats, Integers
from pagefl.game.protocol import ClientPolicy, Moves, Observation, Outcome, Players, ServerPolicy, Setup
from pagefl.game.ranges import Ranges
from pagefl.game.rewards import DemandRatio
from pagefl.game.uploads import Uploads

from .bounds import Count, Positive, Rounds, Share
from .scoring import Scoring

STATES, ACTIONS = 2, 2  # accuracy and value of the shared model; lr, epochs
TRANSITION = [STATES, ACTIONS, 1, 1]  # state, action, reward, whether it was exploring
VALUE = 5.0  # by which a value, minus a log loss, is divided to be of the size of an accuracy
FLOOR = 0.01  # added to a loss before its logarithm: a client with one class must not outweigh all others
EDGE = 0.9  # the farthest out that a policy begins that is to learn: beyond it tanh is flat
STEEPEST = 0.1  # the largest fall of ln(lr) from round to round of the decay: in a short run it falls little
KEPT = 200  # transitions of a round that the server keeps: more clients must not make its memory shorter
RECENT = 30  # rounds that are remembered: what pays changes as the shared model gets better
OWN_BATCH = 32  # of a client that learns from its own transitions alone


@dataclass(frozen=True)
class PageShared(Players):
    """PAGE with one policy that clients share, by experience or by weights, and a server that scores uploads.

    share: what clients share: the transitions they experience, or the weights of the agents they train
    lr_min: smallest learning rate that can be chosen
    lr_max: largest learning rate that can be chosen
    epochs_max: largest number of local epochs that can be chosen
    critic_lr: learning rate of the critics
    actor_lr: learning rate of the actors
    noise: standard deviation of the exploration noise on actions in [-1, 1]
    explore: share of the rounds, from the start, in which the policy explores and learns
    warm_up: rounds before anything is learned, so that the critic has seen enough
    updates: minibatches that are learned in each round
    batch_size: transitions in a minibatch
    decay: share of the rounds, at the end, in which lr falls to its least when demand is 1:1
    scoring_lr: learning rate of the network that scores uploads
    temperature: of the softmax that makes weights; smaller values give larger differences
    """

    uses_demand = True

    share: Literal["experience", "weights"] = "experience"
    lr_min: Positive = 1e-3
    lr_max: Positive = 0.1
    epochs_max: Count = 20
    critic_lr: Positive = 1e-3
    actor_lr: Positive = 5e-5
    noise: Positive = 0.5
    explore: Share = 0.1
    warm_up: Rounds = 10
    updates: Count = 10
    batch_size: Count = 256
    decay: Share = 0.2
    scoring_lr: Positive = 1e-2
    temperature: Positive = 1.0

    def client_policy(self, setup: Setup) -> ClientPolicy:
        kind = ClientsOfOnePolicy if self.share == "experience" else ClientsOfAveragedAgents
        return kind(setup, self)

    def server_policy(self, setup: Setup) -> ServerPolicy:
        kind = ExperienceLearner if self.share == "experience" else AgentAverage
        return SharedServer(setup, kind(setup, self), Scoring(setup, self.temperature, self.scoring_lr))

    @property
    def ranges(self) -> Ranges:
        return Ranges(self.lr_min, self.lr_max, self.epochs_max, self.temperature)

    def learns(self, rounds: int) -> bool:
        """Whether a run is long enough to learn anything before exploration ends."""
        return self.explore * rounds > self.warm_up

    def agents(self, setup: Setup, count: int, transitions: int) -> Ddpg:
        """Agents that all begin at the task's own settings.

        `transitions`: of a round, that each agent keeps.
        """
        # Without a future there is nothing for targets to steady.
        settings = DdpgSettings(self.actor_lr, self.critic_lr, 1.0, 0.0, self.batch_size, (64, 64))
        needed = 2 * networks.numbers_needed(STATES, ACTIONS, settings.hidden)
        draw = torch.from_numpy(
            2 * rng.uniforms(rng.keys(setup.seed, "shared policy", 0, [0]), needed) - 1
        ).float()
        ddpg = Ddpg(draw.expand(count, -1), STATES, ACTIONS, RECENT * transitions, settings)
        edge = EDGE if self.learns(setup.rounds) else 1 - 1e-6
        usual = torch.from_numpy(self.ranges.action(setup.lr, setup.epochs)).float().clamp(-edge, edge)
        for net in ("actor", "target_actor"):
            ddpg.nets[net]["bias2"][:] = usual.atanh()
        return ddpg

    def decayed_share(self, demand: DemandRatio) -> float:
        """The share of rounds that the decay takes: more when either side is in demand, since small steps
        raise both accuracies at once, and half as much more for clients. All for the shared model, it begins
        where exploring ends."""
        tipped = 2 * demand.server / (demand.server + demand.clients) - 1
        return (
            self.decay + max(tipped, -tipped / 2) * max(0.0, 1 - self.explore - self.decay)
            if self.decay
            else 0.0
        )


class SharingClients(ClientPolicy):
    """Common to both ways of sharing: clients act by what they are sent, and note what it was worth."""

    uses_upload_loss = True

    def __init__(self, setup: Setup, players: PageShared) -> None:
        super().__init__(setup)
        self.players, self.ranges = players, players.ranges
        self.transition = torch.zeros(setup.clients, sum(TRANSITION))

    @property
    @abstractmethod
    def actor(self) -> networks.Parameters:
        """What clients were sent, as the actor of one agent."""

    def act(self, round: int, clients: Integers, seen: Observation) -> Moves:
        value = -np.log(seen.loss + FLOOR)
        state = torch.from_numpy(np.stack([seen.accuracy, value / VALUE], axis=1)).float()
        action = networks.act(self.actor, state[None])[0]
        share = self.players.decayed_share(seen.demand)
        decayed = min(1.0, max(0.0, 1 - (1 - round / self.setup.rounds) / share)) if share else 0.0
        until = self.players.explore * self.setup.rounds if self.players.learns(self.setup.rounds) else 0
        explores = round <= until and not decayed and not self.frozen
        if explores:
            keys = rng.keys(self.setup.seed, "exploring", round, (self.setup.first + clients).tolist())
            action = (
                action + self.players.noise * torch.from_numpy(rng.normals(keys, ACTIONS)).float()
            ).clamp(-1, 1)
        earned, exploring = (
            torch.full([len(clients), 1], torch.nan),
            torch.full([len(clients), 1], float(explores)),
        )
        self.transition[torch.from_numpy(clients)] = torch.cat([state, action, earned, exploring], dim=1)
        moves = action.double().numpy()
        lr = self.ranges.lr(moves[:, 0])
        return Moves(lr * self._least(lr, share, seen.demand) ** decayed, self.ranges.epochs(moves[:, 1]))

    def _least(self, lr: Floats, share: float, demand: DemandRatio) -> Floats:
        """By which factor lr has fallen at the end of the decay.

        Clients in demand keep steps that personalise.
        """
        depth = min(1.0, 0.5 + demand.server / (demand.server + demand.clients))
        return np.maximum((self.ranges.lr_min / lr) ** depth, np.exp(-STEEPEST * share * self.setup.rounds))

    def reward(self, round: int, clients: Integers, outcome: Outcome) -> None:
        who = torch.from_numpy(clients)
        value = torch.from_numpy(-np.log(outcome.upload_loss + FLOOR)).float()
        self.transition[who, STATES + ACTIONS] = value - VALUE * self.transition[who, 1]


class ClientsOfOnePolicy(SharingClients):
    """Clients send their transitions, a few numbers each; the server learns from all and sends the policy."""

    def __init__(self, setup: Setup, players: PageShared) -> None:
        super().__init__(setup, players)
        self._actor = players.agents(setup, 1, 1).nets["actor"]

    @property
    def actor(self) -> networks.Parameters:
        return self._actor

    @property
    def received(self) -> State:
        return {f"policy.{name}": value[0] for name, value in self._actor.items()}

    def experience(self, clients: Integers) -> State:
        return {"transition": self.transition[torch.from_numpy(clients)]}


class ClientsOfAveragedAgents(SharingClients):
    """Every client trains the agent it is sent on its own transitions; the server averages the agents."""

    def __init__(self, setup: Setup, players: PageShared) -> None:
        super().__init__(setup, players)
        self.ddpg = players.agents(setup, setup.clients, 1)
        self.agent = sent_agent(self.ddpg)

    @property
    def actor(self) -> networks.Parameters:
        return {part: self.agent[f"agent.actor.{part}"][None] for part in self.ddpg.nets["actor"]}

    @property
    def received(self) -> State:
        return self.agent

    def reward(self, round: int, clients: Integers, outcome: Outcome) -> None:
        super().reward(round, clients, outcome)
        if self.frozen:
            return
        who = torch.from_numpy(clients)
        for name, value in self.agent.items():
            self._net(name)[who] = value
        rows = self.transition[who]
        complete = (rows[:, -1] > 0) & rows.isfinite().all(1)
        able = who[complete]
        if not len(able):
            return
        states, actions, rewards, _ = torch.split(rows[complete], TRANSITION, dim=1)
        self.ddpg.replay.add(able, states, actions, rewards[:, 0], states)
        if round <= self.players.warm_up:
            return
        moments = self.ddpg.replay.reward_moments(able)
        numbers = (self.setup.first + able.numpy()).tolist()
        for step in range(self.players.updates):
            keys = rng.keys(self.setup.seed, f"own minibatch {step}", round, numbers)
            batch = self.ddpg.replay.sample(able, torch.from_numpy(rng.uniforms(keys, OWN_BATCH)))
            self.ddpg.update(able, batch.standardised(*moments))

    def experience(self, clients: Integers) -> State:
        return {name: self._net(name)[torch.from_numpy(clients)] for name in self.agent}

    def _net(self, name: str) -> Tensor:
        _, net, part = name.split(".")
        return self.ddpg.nets[net][part]

    @property
    def tensors(self) -> State:
        return self.ddpg.tensors


def sent_agent(ddpg: Ddpg) -> State:
    """The parts of an agent that are averaged.

    What only steadies learning (targets, moments) stays with the clients.
    """
    return {
        f"agent.{net}.{part}": value[0].clone()
        for net in ("actor", "critic")
        for part, value in ddpg.nets[net].items()
    }


class Teacher(Protocol):
    """The server's half of sharing: what is sent to clients, and how it learns from what they send."""

    @property
    def sent(self) -> State: ...

    def update(self, round: int, experience: Mapping[str, Tensor]) -> Losses | None: ...

    @property
    def tensors(self) -> State: ...


class ExperienceLearner:
    """One agent, trained on everybody's transitions."""

    def __init__(self, setup: Setup, players: PageShared) -> None:
        self.setup, self.players = setup, players
        self.ddpg = players.agents(setup, 1, min(KEPT, setup.clients))

    @property
    def sent(self) -> State:
        return {f"policy.{name}": value[0] for name, value in self.ddpg.nets["actor"].items()}

    def update(self, round: int, experience: Mapping[str, Tensor]) -> Losses | None:
        rows = experience["transition"]
        rows = rows[(rows[:, -1] > 0) & rows.isfinite().all(1)]
        if not len(rows):
            return None
        if len(rows) > KEPT:
            chosen = rng.stream(self.setup.seed, "kept lessons", round).choice(len(rows), KEPT, replace=False)
            rows = rows[torch.from_numpy(np.sort(chosen))]
        states, actions, rewards, _ = torch.split(rows, TRANSITION, dim=1)
        self.ddpg.replay.extend(states, actions, (rewards - rewards.mean())[:, 0], states)
        if round <= self.players.warm_up:
            return None
        everybody = torch.zeros(1, dtype=torch.long)
        moments = self.ddpg.replay.reward_moments(everybody)
        keys = rng.keys(self.setup.seed, "shared minibatch", round, range(self.players.updates))
        for chance in torch.from_numpy(rng.uniforms(keys, self.players.batch_size)):
            batch = self.ddpg.replay.sample(everybody, chance[None])
            losses = self.ddpg.update(everybody, batch.standardised(*moments))
        return losses

    @property
    def tensors(self) -> State:
        return self.ddpg.tensors


class AgentAverage:
    """The mean of the agents that clients have trained."""

    def __init__(self, setup: Setup, players: PageShared) -> None:
        self.agent = sent_agent(players.agents(setup, 1, 1))

    @property
    def sent(self) -> State:
        return self.agent

    def update(self, round: int, experience: Mapping[str, Tensor]) -> Losses | None:
        good = torch.stack([rows.flatten(1).isfinite().all(1) for rows in experience.values()]).all(0)
        if bool(good.any()):
            for name, value in self.agent.items():
                value.copy_(experience[name][good].mean(0))
        return None

    @property
    def tensors(self) -> State:
        return self.agent


class SharedServer(ServerPolicy):
    """A teacher for the clients' policy, and a network that scores their uploads."""

    looks_at_uploads = True

    def __init__(self, setup: Setup, teacher: Teacher, scoring: Scoring) -> None:
        super().__init__(setup)
        self.teacher, self.scoring = teacher, scoring

    @property
    def sent(self) -> State:
        return self.teacher.sent

    def update(self, round: int, experience: State) -> Losses | None:
        return None if self.frozen else self.teacher.update(round, experience)

    def observe(self, round: int, clients: Integers, uploads: Uploads) -> Losses | None:
        return self.scoring.observe(round, clients, uploads)

    def act(self, round: int, clients: Integers, uploads: Uploads) -> Floats:
        return self.scoring.act(round, clients, uploads)

    @property
    def tensors(self) -> State:
        return {
            **self.scoring.tensors,
            **{f"shared.{name}": value for name, value in self.teacher.tensors.items()},
        }

    def freeze(self) -> None:
        self.frozen = self.scoring.frozen = True
