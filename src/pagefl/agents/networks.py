"""Actor and critic of N agents as one batched network. The first dimension of a parameter is the agent."""

from collections.abc import Sequence

import torch
from torch import Tensor

Parameters = dict[str, Tensor]
HIDDEN = (40, 30)
LAST = 3e-3  # spread of the last layer: small, so that the first actions are near zero


def actor_parameters(draw: Tensor, states: int, actions: int, hidden: Sequence[int] = HIDDEN) -> Parameters:
    """`draw`: uniform numbers in [-1, 1), one row per agent; see `numbers_needed`."""
    return _initial(draw, [(states, hidden[0]), (hidden[0], hidden[1]), (hidden[1], actions)])


def critic_parameters(draw: Tensor, states: int, actions: int, hidden: Sequence[int] = HIDDEN) -> Parameters:
    """The action enters at the second layer."""
    return _initial(draw, [(states, hidden[0]), (hidden[0] + actions, hidden[1]), (hidden[1], 1)])


def numbers_needed(states: int, actions: int, hidden: Sequence[int] = HIDDEN) -> int:
    """Random numbers needed per agent for an actor or a critic, whichever needs more."""
    return (
        (states + 1) * hidden[0] + (hidden[0] + actions + 1) * hidden[1] + (hidden[1] + 1) * max(actions, 1)
    )


def act(actor: Parameters, states: Tensor) -> Tensor:
    """[agents, batch, states] -> [agents, batch, actions] in (-1, 1)."""
    hidden = _layer(actor, 0, states).relu()
    hidden = _layer(actor, 1, hidden).relu()
    return _layer(actor, 2, hidden).tanh()


def value(critic: Parameters, states: Tensor, actions: Tensor) -> Tensor:
    """Q values, [agents, batch]."""
    hidden = _layer(critic, 0, states).relu()
    hidden = _layer(critic, 1, torch.cat([hidden, actions], -1)).relu()
    return _layer(critic, 2, hidden).squeeze(-1)


def _layer(parameters: Parameters, i: int, x: Tensor) -> Tensor:
    return torch.baddbmm(parameters[f"bias{i}"].unsqueeze(1), x, parameters[f"weight{i}"])


def _initial(draw: Tensor, shapes: list[tuple[int, int]]) -> Parameters:
    """Uniform in ±1/sqrt(fan-in), as in Lillicrap et al."""
    parameters, at = {}, 0
    for i, (fan_in, fan_out) in enumerate(shapes):
        spread = LAST if i == len(shapes) - 1 else fan_in**-0.5
        for name, shape in ((f"weight{i}", (fan_in, fan_out)), (f"bias{i}", (fan_out,))):
            count = fan_out * (fan_in if len(shape) == 2 else 1)
            parameters[name] = spread * draw[:, at : at + count].reshape(len(draw), *shape).clone()
            at += count
    return parameters
