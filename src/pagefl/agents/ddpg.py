"""DDPG for a stack of agents.

Lillicrap et al.: Continuous control with deep reinforcement learning. ICLR 2016; Algorithm 1 of PAGE.

N agents share one batched network and one Adam. Their losses are summed, so the gradient of each agent
depends on its own loss only.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from . import networks
from .networks import Parameters
from .replay import Replay, Transitions


@dataclass(frozen=True)
class DdpgSettings:
    actor_lr: float = 1e-4
    critic_lr: float = 1e-3
    tau: float = 1e-3
    gamma: float = 0.99
    batch_size: int = 32
    hidden: tuple[int, int] = networks.HIDDEN


class Losses(NamedTuple):
    critic: Tensor  # [agents] mean squared Bellman error
    actor: Tensor  # [agents] minus the mean Q of the actor's own actions


class Ddpg:
    """N agents as one object.

    `tensors` holds everything that changes. Random numbers are passed in, so that results depend on nothing
    else.
    """

    def __init__(
        self, draw: Tensor, states: int, actions: int, capacity: int, settings: DdpgSettings
    ) -> None:
        """`draw`: uniform numbers in [-1, 1), for each agent twice `networks.numbers_needed`."""
        self.settings = settings
        self.states, self.actions = states, actions
        half = networks.numbers_needed(states, actions, settings.hidden)
        actor = networks.actor_parameters(draw[:, :half], states, actions, settings.hidden)
        critic = networks.critic_parameters(draw[:, half:], states, actions, settings.hidden)
        self.nets: dict[str, Parameters] = {
            "actor": actor,
            "critic": critic,
            "target_actor": {name: value.clone() for name, value in actor.items()},
            "target_critic": {name: value.clone() for name, value in critic.items()},
        }
        for net in ("actor", "critic"):
            for moment in ("mean", "square"):
                self.nets[f"{net}_{moment}"] = {
                    name: torch.zeros_like(value) for name, value in self.nets[net].items()
                }
        self.updates = torch.zeros(len(draw), dtype=torch.long)
        self.replay = Replay(len(draw), capacity, states, actions)

    @property
    def tensors(self) -> dict[str, Tensor]:
        nets = {
            f"{net}.{name}": value
            for net, parameters in self.nets.items()
            for name, value in parameters.items()
        }
        replay = {f"replay.{name}": value for name, value in self.replay.tensors.items()}
        return {**nets, **replay, "updates": self.updates}

    def act(self, who: Tensor, states: Tensor) -> Tensor:
        """Actions without noise: [agents, states] -> [agents, actions]."""
        return networks.act(_of(self.nets["actor"], who), states[:, None].float())[:, 0]

    def update(self, who: Tensor, batch: Transitions) -> Losses:
        """Update these agents once: the critic, then the actor with the new critic, then both targets."""
        # Update in place if all agents learn: copying is most of the cost of a small network's update.
        everybody = torch.equal(who, torch.arange(len(self.updates)))
        nets = (
            self.nets if everybody else {name: _of(parameters, who) for name, parameters in self.nets.items()}
        )
        self.updates[who] += 1
        steps = self.updates[who]

        next_actions = networks.act(nets["target_actor"], batch.next_states)
        wanted = batch.rewards + self.settings.gamma * networks.value(
            nets["target_critic"], batch.next_states, next_actions
        )
        critic = _leaves(nets["critic"])
        critic_loss = (wanted - networks.value(critic, batch.states, batch.actions)).square().mean(1)
        adam(nets, "critic", critic, critic_loss, self.settings.critic_lr, steps)

        actor = _leaves(nets["actor"])
        actor_loss = -networks.value(nets["critic"], batch.states, networks.act(actor, batch.states)).mean(1)
        adam(nets, "actor", actor, actor_loss, self.settings.actor_lr, steps)

        for net in ("actor", "critic"):
            for name, value in nets[net].items():
                target = nets[f"target_{net}"][name]
                target.mul_(1 - self.settings.tau).add_(value, alpha=self.settings.tau)
        if not everybody:
            for name, parameters in nets.items():
                for part, value in parameters.items():
                    self.nets[name][part][who] = value
        return Losses(critic_loss.detach(), actor_loss.detach())


def _of(parameters: Parameters, who: Tensor) -> Parameters:
    return {name: value[who] for name, value in parameters.items()}


def _leaves(parameters: Parameters) -> Parameters:
    return {name: value.detach().requires_grad_() for name, value in parameters.items()}


def adam(
    nets: dict[str, Parameters], net: str, leaves: Parameters, losses: Tensor, lr: float, steps: Tensor
) -> None:
    """Adam (Kingma, Ba, ICLR 2015) as in torch, with a step count per agent."""
    first, second, epsilon = 0.9, 0.999, 1e-8
    gradients = torch.autograd.grad(losses.sum(), list(leaves.values()))
    for (name, value), gradient in zip(nets[net].items(), gradients, strict=True):
        count = steps.double().view(-1, *[1] * (value.dim() - 1))
        mean, square = nets[f"{net}_mean"][name], nets[f"{net}_square"][name]
        mean.mul_(first).add_(gradient, alpha=1 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        size = (lr / (1 - first**count)).to(value)
        root = (1 - second**count).sqrt().to(value)
        value.sub_(size * mean / (square.sqrt() / root + epsilon))
