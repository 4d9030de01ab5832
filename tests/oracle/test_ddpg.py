"""Stacked DDPG against Stable-Baselines3's, and against itself one agent at a time; the replay's ring."""

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import DDPG
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch import Tensor, nn

from pagefl.agents import networks
from pagefl.agents.ddpg import Ddpg, DdpgSettings
from pagefl.agents.replay import Replay, Transitions

STATES, ACTIONS, AGENTS, UPDATES = 3, 2, 3, 20
SETTINGS = DdpgSettings(actor_lr=2e-3, critic_lr=5e-3, tau=0.05, gamma=0.9, batch_size=8, hidden=(7, 5))
NETS = ("actor", "critic", "target_actor", "target_critic")


def agents(count: int = AGENTS, seed: int = 0) -> Ddpg:
    needed = 2 * networks.numbers_needed(STATES, ACTIONS, SETTINGS.hidden)
    draw = 2 * torch.rand(count, needed, generator=torch.Generator().manual_seed(seed)) - 1
    return Ddpg(draw, STATES, ACTIONS, 50, SETTINGS)


def minibatches(count: int = UPDATES) -> list[Transitions]:
    generator = torch.Generator().manual_seed(1)
    shape = (AGENTS, SETTINGS.batch_size)

    def draw(*last: int) -> Tensor:
        return 2 * torch.rand(*shape, *last, generator=generator) - 1

    return [Transitions(draw(STATES), draw(ACTIONS), 5 * draw(), draw(STATES)) for _ in range(count)]


def alone(batch: Transitions, *who: int) -> Transitions:
    return Transitions(*(value[list(who)] for value in batch))


class Layers(nn.Module):
    """Three linear layers with our weights, in the order of our parameters."""

    def __init__(self, parameters: dict[str, Tensor], lr: float) -> None:
        super().__init__()
        self.own = nn.ParameterDict({name: nn.Parameter(value.clone()) for name, value in parameters.items()})
        self.optimizer = torch.optim.Adam(self.parameters(), lr)

    def layer(self, i: int, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.own[f"weight{i}"].T, self.own[f"bias{i}"])

    def set_training_mode(self, mode: bool) -> None:
        self.train(mode)


class PlainActor(Layers):
    def forward(self, states: Tensor) -> Tensor:
        return self.layer(2, self.layer(1, self.layer(0, states).relu()).relu()).tanh()


class PlainCritic(Layers):
    def q1_forward(self, states: Tensor, actions: Tensor) -> Tensor:
        return self.layer(2, self.layer(1, torch.cat([self.layer(0, states).relu(), actions], 1)).relu())

    def forward(self, states: Tensor, actions: Tensor) -> tuple[Tensor]:
        return (self.q1_forward(states, actions),)


class Given:
    """A replay buffer that hands out given minibatches."""

    def __init__(self, batches: list[Transitions]) -> None:
        self.batches = iter(batches)

    def sample(self, size: int, env: object = None) -> ReplayBufferSamples:
        states, actions, rewards, next_states = (value[0] for value in next(self.batches))
        never = torch.zeros(len(states), 1)
        return ReplayBufferSamples(states, actions, next_states, never, rewards[:, None])


class Spaces(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (STATES,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (ACTIONS,), np.float32)


def stable_baselines(ours: Ddpg, agent: int, batches: list[Transitions]) -> DDPG:
    """Their training loop on our architecture and weights, which their policies cannot express."""
    model = DDPG("MlpPolicy", Spaces(), tau=SETTINGS.tau, gamma=SETTINGS.gamma, buffer_size=1, device="cpu")
    own = {net: {name: value[agent] for name, value in ours.nets[net].items()} for net in NETS}
    model.policy.actor, model.policy.actor_target = (
        PlainActor(own[net], SETTINGS.actor_lr) for net in NETS[::2]
    )
    model.policy.critic, model.policy.critic_target = (
        PlainCritic(own[net], SETTINGS.critic_lr) for net in NETS[1::2]
    )
    model._create_aliases()
    model._update_learning_rate = lambda optimizers: None  # it knows one lr for both
    model.replay_buffer = Given([alone(batch, agent) for batch in batches])
    model.set_logger(Logger(None, []))
    return model


@pytest.mark.parametrize("agent", range(AGENTS))
def test_stable_baselines_comes_to_the_same_networks(agent):
    ours, batches = agents(), minibatches()
    theirs = stable_baselines(ours, agent, batches)
    first = {net: {name: value.clone() for name, value in ours.nets[net].items()} for net in NETS}
    for batch in batches:
        ours.update(torch.arange(AGENTS), batch)
        theirs.train(gradient_steps=1)
        modules = (theirs.actor, theirs.critic, theirs.actor_target, theirs.critic_target)
        for net, module in zip(NETS, modules, strict=True):
            for name, value in module.own.items():
                torch.testing.assert_close(ours.nets[net][name][agent], value.detach(), rtol=1e-4, atol=1e-5)
    for net in NETS:  # all of them have moved much further than the tolerance
        assert all((ours.nets[net][name] - value).abs().max() > 1e-2 for name, value in first[net].items()), (
            net
        )


def test_stacked_agents_are_separate_agents():
    stacked, batches = agents(), minibatches()
    separate = [agents() for _ in range(AGENTS)]
    for batch in batches:
        together = stacked.update(torch.arange(AGENTS), batch)
        for i, one in enumerate(separate):
            losses = one.update(torch.tensor([i]), alone(batch, i))
            torch.testing.assert_close(together.critic[[i]], losses.critic, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(together.actor[[i]], losses.actor, rtol=1e-5, atol=1e-6)
    states = batches[0].states[:, 0]
    for i, one in enumerate(separate):
        for name, value in stacked.tensors.items():
            torch.testing.assert_close(value[i], one.tensors[name][i], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            stacked.act(torch.arange(AGENTS), states)[[i]],
            one.act(torch.tensor([i]), states[[i]]),
            rtol=1e-5,
            atol=1e-6,
        )


def test_agents_that_are_not_meant_stay_as_they_are():
    ours, batch = agents(), minibatches(1)[0]
    before = {name: value.clone() for name, value in ours.tensors.items()}
    ours.update(torch.tensor([0, 2]), alone(batch, 0, 2))
    for name, value in ours.tensors.items():
        assert torch.equal(value[1], before[name][1]), name
        if not name.startswith("replay."):
            assert all(not torch.equal(value[i], before[name][i]) for i in (0, 2)), name


def test_the_order_in_which_agents_are_named_does_not_matter():
    one, other, batch = agents(), agents(), minibatches(1)[0]
    one.update(torch.tensor([0, 1, 2]), batch)
    other.update(torch.tensor([2, 0, 1]), alone(batch, 2, 0, 1))
    for name, value in one.tensors.items():
        torch.testing.assert_close(other.tensors[name], value)


def add(replay: Replay, who: list[int], number: int) -> None:
    """Transition `number` of these agents: recognisable in every part."""
    value = torch.full((len(who), 1), float(number))
    replay.add(torch.tensor(who), value, -value, 10 * value[:, 0], value + 1)


def held(replay: Replay, agent: int) -> list[float]:
    """The rewards that samples come from."""
    chance = torch.arange(0, 1, 1 / 64)[None]
    drawn = replay.sample(torch.tensor([agent]), chance)
    assert torch.equal(drawn.rewards, 10 * drawn.states[..., 0])
    assert torch.equal(drawn.actions, -drawn.states)
    assert torch.equal(drawn.next_states, drawn.states + 1)
    return sorted(set(drawn.rewards[0].tolist()))


def test_the_ring_forgets_the_oldest_of_each_agent_alone():
    replay = Replay(2, capacity=4, states=1, actions=1)
    for number in range(1, 7):
        add(replay, [0, 1] if number <= 3 else [0], number)
    assert held(replay, 0) == [30.0, 40.0, 50.0, 60.0]
    assert held(replay, 1) == [10.0, 20.0, 30.0]
    assert replay.filled().tolist() == [4, 3]
    mean, spread = replay.reward_moments(torch.tensor([0, 1]))
    torch.testing.assert_close(mean, torch.tensor([[45.0], [20.0]]))
    torch.testing.assert_close(spread, torch.tensor([[125.0**0.5], [(200 / 3) ** 0.5]]))


def test_a_shorter_ring_goes_on_in_a_longer_one():
    short, long = Replay(1, 3, 1, 1), Replay(1, 5, 1, 1)
    for number in (1, 2, 3):
        add(short, [0], number)
    long.load(short.tensors)
    assert held(long, 0) == [10.0, 20.0, 30.0]
    for number in (4, 5, 6):
        add(long, [0], number)
    assert held(long, 0) == [20.0, 30.0, 40.0, 50.0, 60.0]


@pytest.mark.parametrize(
    ("length", "written"), [(5, 5), (3, 4)]
)  # a longer one that is full; a shorter one that has begun anew
def test_a_ring_that_does_not_fit_is_refused(length, written):
    other = Replay(1, length, 1, 1)
    for number in range(written):
        add(other, [0], number)
    with pytest.raises(ValueError, match=f"a ring of {length} transitions does not fit into one of 4"):
        Replay(1, 4, 1, 1).load(other.tensors)
