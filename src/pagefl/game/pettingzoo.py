"""The game at the border: PettingZoo environments of all sides, and a Gymnasium environment of one.

Names and dicts live here; inside are arrays with an entry for each client. Actions are in [-1, 1]: a client's lr and epochs,
the server's score of every client. Whoever does not take part in a stage is asked too, but moves and earns nothing.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Space
from pettingzoo import AECEnv, ParallelEnv
from torch import Tensor

from pagefl.agents.ddpg import Losses
from pagefl.core.errors import UserError
from pagefl.core.federation import Federation, Uploads

from .game import FederatedGame, Followed, Led, Terms
from .players import FixedPlayers, Follower, Leaders, Players, Seen, Setup, Worth
from .rules import Bias, Floats, Integers, Ranges

SERVER = "server"
FAIR = Bias()
Array = npt.NDArray[np.float32]
Info = dict[str, Any]
Make = Callable[[int], tuple[Federation, Setup, Terms]]  # everything that a seed decides


class Handed:
    """Moves from outside bring no state of their own that a run could save, load or freeze."""

    tensors: dict[str, Tensor] = {}  # noqa: RUF012 (never written)

    def load(self, tensors: dict[str, Tensor]) -> None:
        pass

    def freeze(self) -> None:
        pass


class HandedLeaders(Handed):
    """Leaders whose moves are handed in, beside others who choose for themselves."""

    sees = False  # the stages have looked already; `seen` is what they saw, of every client
    seen: Seen
    others: Leaders

    def __init__(self, ranges: Ranges, handed: npt.NDArray[np.bool_]) -> None:
        self.ranges, self.handed = ranges, handed
        self.actions = np.zeros((len(handed), 2))

    def lead(self, round: int, who: Integers, seen: Seen | None) -> tuple[Floats, Integers, Losses | None]:
        lr, epochs = self.ranges.lr(self.actions[who, 0]), self.ranges.epochs(self.actions[who, 1])
        rest = ~self.handed[who]
        if rest.any():
            shown = self.seen.of(who[rest]) if self.others.sees else None
            lr[rest], epochs[rest], _ = self.others.lead(round, who[rest], shown)
        return lr, epochs, None

    def learn(self, who: Integers, worth: Worth) -> None:
        rest = ~self.handed[who]
        if rest.any():
            self.others.learn(who[rest], Worth(*(value[rest] for value in worth)))

    @property
    def shared(self) -> dict[str, Tensor]:
        return self.others.shared

    def lessons(self, who: Integers) -> dict[str, Tensor]:
        return self.others.lessons(who[~self.handed[who]])

    def share(self, round: int, lessons: Mapping[str, Tensor]) -> Losses | None:
        return self.others.share(round, lessons)


class HandedFollower(Handed):
    """A follower whose move is handed in, or another's."""

    others: Follower
    sees: bool

    def __init__(self, ranges: Ranges, clients: int, handed: bool) -> None:
        self.ranges, self.handed = ranges, handed
        self.action = np.zeros(clients)

    def beside(self, others: Follower) -> None:
        self.others, self.sees = others, self.handed or others.sees

    def follow(self, round: int, who: Integers, uploads: Uploads | None) -> tuple[Floats, Losses | None]:
        if self.handed:
            return self.ranges.weights(self.action[who]), None
        return self.others.follow(round, who, uploads)

    def learn(self, reward: float) -> None:
        if not self.handed:
            self.others.learn(reward)


class Stages:
    """The game in half stages: moves are handed in, the clients lead, the server follows."""

    led: Led
    followed: Followed

    def __init__(
        self, make: Make, ranges: Ranges, seed: int, sides: Collection[str] = (), others: Players | None = None
    ) -> None:
        """`sides`: those whose moves are handed in, or all; `others` play the rest."""
        self.make, self.ranges, self.sides, self.others = make, ranges, sides, others or FixedPlayers()
        self._build(seed)
        clients = self.setup.clients
        self.state_space = Box(0, 1, (2 * clients,), np.float32)
        self.observation_spaces: dict[str, Space[Array]] = {name: Box(0, 1, (1,), np.float32) for name in self.clients}
        self.observation_spaces[SERVER] = Box(0, 1, (clients,), np.float32)
        self.action_spaces: dict[str, Space[Array]] = {name: Box(-1, 1, (2,), np.float32) for name in self.clients}
        self.action_spaces[SERVER] = Box(-1, 1, (clients,), np.float32)
        if unknown := set(sides) - set(self.action_spaces):
            raise UserError(f"side = {min(unknown)!r}: valid is {SERVER!r}, or 'client 0' to 'client {clients - 1}'")

    def _build(self, seed: int) -> None:
        self.seed = seed
        self.federation, self.setup, terms = self.make(seed)
        self.clients = {f"client {i}": i for i in range(self.setup.clients)}
        handed = np.array([not self.sides or name in self.sides for name in self.clients])
        self.leaders = HandedLeaders(self.ranges, handed)
        self.follower = HandedFollower(self.ranges, len(handed), not self.sides or SERVER in self.sides)
        self.game = FederatedGame(self.federation, self.leaders, self.follower, self.setup, terms)
        self.first = {name: value.clone() for name, value in self.federation.state().items()}
        self.first_seen = self._look(1)
        self.reset()

    def reset(self, seed: int | None = None) -> None:
        """The first stage again; another seed is another federation."""
        if seed is not None and seed != self.seed:
            self._build(seed)
        self.federation.load(self.first)
        self.leaders.others, follower = self.others.sides(self.setup)
        self.follower.beside(follower)
        self.leaders.seen = self.first_seen
        self.uploads = np.zeros(self.setup.clients)  # their accuracies, as the server sees them
        self.round = 1
        self.rewards = dict.fromkeys([*self.clients, SERVER], 0.0)
        self.infos: dict[str, Info] = {name: {} for name in self.rewards}

    @property
    def over(self) -> bool:
        return self.round > self.setup.rounds

    def hand_in(self, side: str, action: Array) -> None:
        shape = self.action_spaces[side].shape
        move = np.asarray(action, np.float64)
        if move.shape != shape or not (np.abs(move) <= 1).all():
            raise UserError(f"{side}: action = {action}: valid is an array of shape {shape} in [-1, 1]")
        if side == SERVER:
            self.follower.action = move
        else:
            self.leaders.actions[self.clients[side]] = move

    def lead(self) -> None:
        self.led = self.game.lead(self.round, FAIR)
        trained = self.led.trained
        if not len(trained.ids):
            raise UserError(
                f"round {self.round}: no client uploaded finite values; a smaller lr_max than {self.ranges.lr_max} may help"
            )
        if trained.candidates is not None:
            self.uploads = np.zeros(self.setup.clients)
            self.uploads[trained.ids] = trained.candidates
        for name in self.clients:
            self.rewards[name], self.infos[name] = 0.0, {}
        columns = (self.led.rewards, trained.train.accuracy, trained.test.accuracy)
        for i, reward, own, test in zip(trained.ids, *columns, strict=True):
            name = f"client {i}"
            self.rewards[name], self.infos[name] = float(reward), {"accuracy": float(own), "test_accuracy": float(test)}

    def follow(self) -> None:
        self.followed = self.game.follow(self.round, self.led, FAIR)
        self.rewards[SERVER] = self.followed.reward
        self.infos[SERVER] = {"accuracy": self.followed.game[1], "test_accuracy": self.followed.test[1]}
        self.round += 1
        self.leaders.seen = self._look(self.round)

    def observe(self, side: str) -> Array:
        seen = self.uploads if side == SERVER else self.leaders.seen.accuracy[[self.clients[side]]]
        return seen.astype(np.float32)

    def state(self) -> Array:
        return np.concatenate([self.leaders.seen.accuracy, self.uploads]).astype(np.float32)

    def _look(self, round: int) -> Seen:
        role = self.game.client_role
        scores = self.federation.judge(round, role)[role]
        return Seen(scores.accuracy, scores.loss, FAIR)


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
    """Every client moves, one after the other, and all train when the last has moved; then the server sees and moves."""

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
            self._pay(self.stages.clients)
        elif agent == SERVER:
            self.stages.follow()
            self._pay([SERVER])
            self.truncations = dict.fromkeys(self.agents, self.stages.over)
        self._accumulate_rewards()

    def _pay(self, agents: Collection[str]) -> None:
        for agent in agents:
            self.rewards[agent], self.infos[agent] = self.stages.rewards[agent], self.stages.infos[agent]


class FederatedParallel(AllSides, ParallelEnv[str, Array, Array]):
    """All choose at once: the server by what it saw in the stage before, though its move still comes after the training."""

    metadata = {"name": "pagefl_parallel_v0", "render_modes": []}  # noqa: RUF012 (never written)

    def reset(self, seed: int | None = None, options: Info | None = None) -> tuple[dict[str, Array], dict[str, Info]]:
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

    def __init__(self, make: Make, ranges: Ranges, side: str, others: Players | None = None, seed: int = 0) -> None:
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
        return stages.observe(self.side), stages.rewards[self.side], False, stages.over, stages.infos[self.side]
