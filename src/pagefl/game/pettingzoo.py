"""The game at the border: PettingZoo environments of all sides, and a Gymnasium environment of one.

Names and dicts live here; inside are arrays with an entry for each client. Actions are in [-1, 1]: a client's
lr and epochs, the server's score of every client. Whoever does not take part in a stage is asked too, but
moves and earns nothing.
"""

from collections.abc import Callable, Collection
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Space
from pettingzoo import AECEnv, ParallelEnv

from pagefl.agents.ddpg import Losses
from pagefl.core.algorithm import State
from pagefl.core.arrays import Floats, Integers
from pagefl.core.clients import ClientHalf
from pagefl.core.errors import UserError
from pagefl.core.server import ServerHalf

from .follower import Follower, Round
from .game import Game
from .leaders import Leaders
from .messages import Answer, Orders
from .protocol import ClientPolicy, Moves, Observation, Outcome, Players, ServerPolicy, Setup
from .ranges import Ranges
from .rewards import DemandRatio
from .terms import Terms
from .uploads import Uploads

SERVER = "server"
FAIR = DemandRatio()
Array = npt.NDArray[np.float32]
Info = dict[str, Any]
Make = Callable[[int], tuple[ClientHalf, ServerHalf, Setup, Terms]]  # everything that a seed decides


class HandedClients(ClientPolicy):
    """Some clients' moves are handed in; the others are played by a policy."""

    def __init__(
        self, setup: Setup, ranges: Ranges, handed: npt.NDArray[np.bool_], others: ClientPolicy
    ) -> None:
        super().__init__(setup)
        self.ranges, self.handed, self.others = ranges, handed, others
        self.uses_upload_loss = others.uses_upload_loss
        self.actions = np.zeros((len(handed), 2))

    @property
    def received(self) -> State:
        return self.others.received

    def observe(self, round: int, clients: Integers, seen: Observation) -> Losses | None:
        rest = ~self.handed[clients]
        return self.others.observe(round, clients[rest], seen.of(rest.nonzero()[0])) if rest.any() else None

    def act(self, round: int, clients: Integers, seen: Observation) -> Moves:
        lr, epochs = self.ranges.lr(self.actions[clients, 0]), self.ranges.epochs(self.actions[clients, 1])
        rest = ~self.handed[clients]
        if rest.any():
            lr[rest], epochs[rest] = self.others.act(round, clients[rest], seen.of(rest.nonzero()[0]))
        return Moves(lr, epochs)

    def limits(self, round: int, clients: Integers, seen: Observation) -> Floats | None:
        rest = ~self.handed[clients]
        theirs = self.others.limits(round, clients[rest], seen.of(rest.nonzero()[0])) if rest.any() else None
        if theirs is None:
            return None
        limits = np.full(len(clients), np.inf)
        limits[rest] = theirs
        return limits

    def rivals(self, round: int, clients: Integers, seen: Observation) -> Moves | None:
        rest = ~self.handed[clients]
        theirs = self.others.rivals(round, clients[rest], seen.of(rest.nonzero()[0])) if rest.any() else None
        if theirs is None:
            return None
        rivals = Moves(np.zeros(len(clients)), np.ones(len(clients), np.int64))
        rivals.lr[rest], rivals.epochs[rest] = theirs
        return rivals

    @property
    def personal_lr(self) -> float:
        return self.others.personal_lr

    def reward(self, round: int, clients: Integers, outcome: Outcome) -> None:
        rest = ~self.handed[clients]
        if rest.any():
            self.others.reward(round, clients[rest], outcome.of(rest))

    def experience(self, clients: Integers) -> State:
        return self.others.experience(clients[~self.handed[clients]])


class HandedServer(ServerPolicy):
    """The weights are handed in, or another policy's."""

    def __init__(self, setup: Setup, ranges: Ranges, handed: bool, others: ServerPolicy) -> None:
        super().__init__(setup)
        self.ranges, self.handed, self.others = ranges, handed, others
        self.action = np.zeros(setup.clients)

    @property
    def sent(self) -> State:
        return self.others.sent

    def update(self, round: int, experience: State) -> Losses | None:
        return self.others.update(round, experience)

    def observe(self, round: int, clients: Integers, uploads: Uploads) -> Losses | None:
        return None if self.handed else self.others.observe(round, clients, uploads)

    def act(self, round: int, clients: Integers, uploads: Uploads) -> Floats:
        return (
            self.ranges.weights(self.action[clients])
            if self.handed
            else self.others.act(round, clients, uploads)
        )

    @property
    def personal_lr(self) -> float:
        return self.others.personal_lr

    def reward(self, round: int, reward: float) -> None:
        if not self.handed:
            self.others.reward(round, reward)


class Stages:
    """The game in half rounds: moves are handed in, the clients lead, the server follows."""

    orders: Orders
    answer: Answer
    played: Round

    def __init__(
        self,
        make: Make,
        ranges: Ranges,
        seed: int,
        sides: Collection[str] = (),
        others: Players | None = None,
    ) -> None:
        """`sides`: those whose moves are handed in, or all; `others` play the rest."""
        self.make, self.ranges, self.sides, self.others = make, ranges, sides, others or Players()
        self._build(seed)
        clients = self.setup.clients
        self.state_space = Box(0, 1, (2 * clients,), np.float32)
        self.observation_spaces: dict[str, Space[Array]] = {
            name: Box(0, 1, (1,), np.float32) for name in self.names
        }
        self.observation_spaces[SERVER] = Box(0, 1, (clients,), np.float32)
        self.action_spaces: dict[str, Space[Array]] = {
            name: Box(-1, 1, (2,), np.float32) for name in self.names
        }
        self.action_spaces[SERVER] = Box(-1, 1, (clients,), np.float32)
        if unknown := set(sides) - set(self.action_spaces):
            raise UserError(
                f"side = {min(unknown)!r}: expected {SERVER!r}, or 'client 0' to 'client {clients - 1}'"
            )

    def _build(self, seed: int) -> None:
        self.seed = seed
        self.clients, self.server, self.setup, self.terms = self.make(seed)
        self.names = {f"client {i}": i for i in range(self.setup.clients)}
        self.first = {
            name: value.clone() for name, value in {**self.clients.state(), **self.server.state()}.items()
        }
        self.reset()

    def reset(self, seed: int | None = None) -> None:
        """The first round again; another seed is another federation."""
        if seed is not None and seed != self.seed:
            self._build(seed)
        self.clients.load(self.first)
        self.server.load(self.first)
        handed = np.array([not self.sides or name in self.sides for name in self.names])
        clients, server = self.others.client_policy(self.setup), self.others.server_policy(self.setup)
        self.client_policy = HandedClients(self.setup, self.ranges, handed, clients)
        self.server_policy = HandedServer(
            self.setup, self.ranges, not self.sides or SERVER in self.sides, server
        )
        self.leaders = Leaders(self.clients, self.client_policy, self.setup, self.terms)
        self.follower = Follower(self.server, self.server_policy, self.terms)
        self.game = Game(self.follower, self.leaders)
        self.game.meet()
        self.uploads = np.zeros(self.setup.clients)  # their accuracies, as the server sees them
        self.round = 1
        self._look()
        self.rewards = dict.fromkeys([*self.names, SERVER], 0.0)
        self.infos: dict[str, Info] = {name: {} for name in self.rewards}

    @property
    def over(self) -> bool:
        return self.round > self.setup.rounds

    def hand_in(self, side: str, action: Array) -> None:
        shape = self.action_spaces[side].shape
        move = np.asarray(action, np.float64)
        if move.shape != shape or not (np.abs(move) <= 1).all():
            raise UserError(f"{side}: action = {action}: expected an array of shape {shape} in [-1, 1]")
        if side == SERVER:
            self.server_policy.action = move
        else:
            self.client_policy.actions[self.names[side]] = move

    def lead(self) -> None:
        self.orders = self.follower.orders(self.round, FAIR)
        self.answer = self.leaders.answer(self.orders)
        ids, told = self.answer.clients, self.answer.told
        if not len(ids):
            raise UserError(
                f"round {self.round}: no client uploaded finite values; a smaller lr_max than "
                f"{self.ranges.lr_max} may help"
            )
        self.follower.note(self.answer)
        if self.server_policy.handed:
            self.uploads = np.zeros(self.setup.clients)
            self.uploads[ids] = self.server.evaluate_uploads(self.round, ids, self.follower.role)
        for name, i in self.names.items():
            trained = i in ids
            self.rewards[name] = float(told["reward"][i]) if trained else 0.0
            found = {
                "accuracy": float(told["train_accuracy"][i]),
                "test_accuracy": float(told["test_accuracy"][i]),
            }
            self.infos[name] = found if trained else {}

    def follow(self) -> None:
        self.played = self.follower.follow(self.orders, self.answer)
        self.rewards[SERVER] = self.played.reward
        self.infos[SERVER] = {"accuracy": self.played.game[1], "test_accuracy": self.played.test[1]}
        self.round += 1
        self._look()

    def observe(self, side: str) -> Array:
        seen = self.uploads if side == SERVER else self.seen[[self.names[side]]]
        return np.asarray(seen.astype(np.float32))

    def state(self) -> Array:
        return np.concatenate([self.seen, self.uploads]).astype(np.float32)

    def _look(self) -> None:
        """The accuracy of the shared model on every client's data, before the clients move."""
        self.clients.receive({name: rows[0] for name, rows in self.server.sent.items()})
        self.seen = self.clients.evaluate(self.round, self.leaders.role)[self.leaders.role].accuracy


class AllSides:
    """What both of PettingZoo's views of the game have in common."""

    def __init__(self, make: Make, ranges: Ranges, seed: int = 0) -> None:
        self.stages = Stages(make, ranges, seed)
        self.possible_agents = [*self.stages.action_spaces]
        self.state_space = self.stages.state_space

    def observation_space(self, agent: str) -> Space[Array]:
        return self.stages.observation_spaces[agent]

    def action_space(self, agent: str) -> Space[Array]:
        return self.stages.action_spaces[agent]

    def observe(self, agent: str) -> Array:
        return self.stages.observe(agent)

    def state(self) -> Array:
        return self.stages.state()


class FederatedAEC(AllSides, AECEnv[str, Array, Array]):
    """Clients move one after the other, and all train when the last has moved. Then the server moves."""

    metadata = {"name": "pagefl_v0", "render_modes": [], "is_parallelizable": True}  # noqa: RUF012 (never written)

    def reset(self, seed: int | None = None, options: Info | None = None) -> None:
        self.stages.reset(seed)
        self.agents = [*self.possible_agents]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, Info] = {agent: {} for agent in self.agents}
        self.agent_selection = self.agents[0]

    def step(self, action: Array) -> None:
        agent = self.agent_selection
        if self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self.stages.hand_in(agent, action)
        self.agent_selection = self.agents[(self.agents.index(agent) + 1) % len(self.agents)]
        if self.agent_selection == SERVER:
            self.stages.lead()
            self._pay(self.stages.names)
        elif agent == SERVER:
            self.stages.follow()
            self._pay([SERVER])
            self.truncations = dict.fromkeys(self.agents, self.stages.over)
        self._accumulate_rewards()

    def _pay(self, agents: Collection[str]) -> None:
        for agent in agents:
            self.rewards[agent], self.infos[agent] = self.stages.rewards[agent], self.stages.infos[agent]


class FederatedParallel(AllSides, ParallelEnv[str, Array, Array]):
    """All choose at once, the server by what it saw in the stage before. Its move still follows training."""

    metadata = {"name": "pagefl_parallel_v0", "render_modes": []}  # noqa: RUF012 (never written)

    def reset(
        self, seed: int | None = None, options: Info | None = None
    ) -> tuple[dict[str, Array], dict[str, Info]]:
        self.stages.reset(seed)
        self.agents = [*self.possible_agents]
        return self._observations(), {agent: {} for agent in self.agents}

    def step(
        self, actions: dict[str, Array]
    ) -> tuple[dict[str, Array], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Info]]:
        for agent in self.agents:
            self.stages.hand_in(agent, actions[agent])
        self.stages.lead()
        self.stages.follow()
        ends, over = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, self.stages.over)
        answer = self._observations(), dict(self.stages.rewards), ends, over, dict(self.stages.infos)
        if self.stages.over:
            self.agents = []
        return answer

    def _observations(self) -> dict[str, Array]:
        return {agent: self.observe(agent) for agent in self.agents}


class SingleSide(gymnasium.Env[Array, Array]):
    """The game as one side sees it, "client 3" or "server"; the others are played by players of ours."""

    def __init__(
        self, make: Make, ranges: Ranges, side: str, others: Players | None = None, seed: int = 0
    ) -> None:
        self.side = side
        self.stages = Stages(make, ranges, seed, [side], others)
        self.observation_space = self.stages.observation_spaces[side]
        self.action_space = self.stages.action_spaces[side]

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        super().reset(seed=seed)
        self.stages.reset(seed)
        if self.side == SERVER:
            self.stages.lead()
        return self.stages.observe(self.side), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        self.stages.hand_in(self.side, action)
        if self.side != SERVER:
            self.stages.lead()
        self.stages.follow()
        if self.side == SERVER and not self.stages.over:  # after the last stage it keeps what it saw
            self.stages.lead()
        stages = self.stages
        return (
            stages.observe(self.side),
            stages.rewards[self.side],
            False,
            stages.over,
            stages.infos[self.side],
        )
