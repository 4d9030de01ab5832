"""Builds the halves of a federation: both for a simulation, one for a node or a server."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pagefl.core import rng
from pagefl.core.algorithm import Algorithm, State
from pagefl.core.arrays import Integers
from pagefl.core.block import Block
from pagefl.core.clients import Blocks, ClientHalf
from pagefl.core.errors import UserError
from pagefl.core.examples import ClientData, Examples, ServerData
from pagefl.core.holdings import Resident
from pagefl.core.jobs import group_size
from pagefl.core.layout import Layout
from pagefl.core.memory import needs
from pagefl.core.server import ServerHalf
from pagefl.core.storage import Allocate
from pagefl.core.training import linear
from pagefl.core.training.loss import Loss
from pagefl.core.training.model import Model
from pagefl.core.training.stack import Training
from pagefl.devices.fleet import Fleet
from pagefl.game.protocol import Setup
from pagefl.game.terms import Terms
from pagefl.trust.defence import Defence

from . import paths
from .settings import Settings
from .workers import Say as Say

LARGE = 100_000  # weights; a hundred such models on thousands of examples take minutes
ROWS_AT_WORK = 6  # at least: two rows, their gradients, the module and a copy of it


class Start(NamedTuple):
    """What both halves start with."""

    model: Model
    row: Tensor  # the shared model before the first round
    algorithm: Algorithm
    training: Training
    settings: Settings
    loss: Loss | None = None  # of the user's own


def start(
    module: nn.Module,
    algorithm: Algorithm,
    settings: Settings,
    examples: Examples,
    say: Say = lambda line: None,
    loss: Loss | None = None,
) -> Start:
    """`module`: as it is before the first round. `examples`: some that this process holds. They are used to
    find the fastest way to train the model. `loss`: of the user's own."""
    if settings.optimiser != "sgd" and (why := algorithm.needs_sgd):
        raise UserError(
            f"optimiser = {settings.optimiser}: algorithm {type(algorithm).__name__} needs sgd, since {why}"
        )
    width = sum(parameter.nbytes for parameter in module.parameters())
    needs(ROWS_AT_WORK * width, "the weights, gradients and copies of one model", "use a smaller model")
    x = examples.x[: settings.batch_size].clone()  # a forward may change it in place
    x = x.to(Layout(module).dtype) if x.is_floating_point() else x
    with rng.torch_stream(settings.seed, "measuring"):
        model = paths.build(module, x, settings.path, settings.device, say, loss)
    if not linear.compiled():
        say("compiling the kernels (once; kept in numba's cache) …")
    if model.why:
        say(f"path = {model.path}; not a faster one, since {model.why}")
    training = Training(
        settings.seed,
        settings.lr,
        settings.batch_size,
        settings.weight_decay,
        settings.clip,
        settings.momentum,
        settings.optimiser,
    )
    return Start(model, model.layout.row(module), algorithm, training, settings, loss)


def block(begin: Start, data: Resident, *, allocate: Allocate = torch.zeros) -> Block:
    return Block(
        begin.model,
        begin.algorithm,
        data,
        begin.training,
        row=begin.row,
        steps=begin.settings.personal.when != "never",
        allocate=allocate,
    )


def resident(begin: Start, data: ClientData, first: int = 0) -> Resident:
    """`first`: number of the first client."""
    return Resident(data, begin.model, begin.row, first)


def client_half(begin: Start, blocks: Blocks, *, clients: int | None = None) -> ClientHalf:
    """`clients`: of the whole federation, if they are not all in these blocks at once."""
    return ClientHalf(
        blocks,
        begin.algorithm,
        begin.training,
        chunk=begin.settings.chunk or begin.model.chunk,
        cuts=cuts_of(begin, clients or len(blocks.sizes)),
        scores_alone=begin.model.scores_alone,
        steps=begin.settings.personal.when != "never",
    )


def group_of(begin: Start, clients: int) -> int:
    return group_size(clients, begin.settings.groups, begin.settings.chunk or begin.model.chunk)


def cuts_of(begin: Start, clients: int) -> Integers:
    """The first client of each group but the first one."""
    group = group_of(begin, clients)
    return np.arange(group, clients, group)


def server_half(
    begin: Start,
    data: ServerData,
    clients: int,
    *,
    uploads: State | None = None,
    places: Callable[[Integers], Integers] | None = None,
    allocate: Allocate = torch.zeros,
) -> ServerHalf:
    half = ServerHalf(
        begin.model,
        begin.algorithm,
        data,
        begin.training,
        row=begin.row,
        clients=clients,
        uploads=uploads,
        look=begin.settings.look or (500 if begin.row.numel() > LARGE else 4000),
        cuts=cuts_of(begin, clients),
        places=places,
        allocate=allocate,
    )
    if (defence := defence_of(begin.settings)) != Defence(seed=defence.seed):
        half.treatments += (defence,)
    return half


def defence_of(settings: Settings) -> Defence:
    own = settings.defence.model_dump(exclude={"largest_size_share"})
    return Defence(**own, seed=settings.seed)


def setup_of(settings: Settings, clients: int, first: int = 0, devices: Fleet | None = None) -> Setup:
    """What the players of these clients are told before the first round."""
    deadline = settings.devices.deadline or None
    released = settings.protocol == "released"
    own = (settings.rounds, settings.seed, settings.lr, settings.epochs)
    return Setup(clients, *own, released, first, frozenset(settings.freeze), devices, deadline)


def terms_of(settings: Settings) -> Terms:
    devices = settings.devices
    return Terms(
        penalty=settings.reward_penalty,
        reward=settings.reward,
        protocol=settings.protocol,
        freeze=frozenset(settings.freeze),
        participation=settings.participation,
        absences=devices.barrier != "wait" or devices.name not in ("none", "equal"),
        on_bad_upload=settings.on_bad_upload,
        rewards=settings.stop == "equilibrium"
        or settings.reward == "weighted-local"
        or devices.select == "oort",  # by their losses
        lr_decay=settings.lr_decay,
        private=settings.privacy.epsilon > 0,
        largest_size_share=settings.defence.largest_size_share,
    )
