"""Simulated hostile clients: they are among the others, and what they upload is replaced at the border."""

from functools import partial

import numpy as np
import torch

from pagefl.core.algorithm import State
from pagefl.core.arrays import Integers
from pagefl.core.errors import UserError
from pagefl.core.personal import Step, Trials, Tuned
from pagefl.core.server import ServerHalf
from pagefl.game.game import Clients
from pagefl.game.messages import Answer, Orders
from pagefl.trust.attacks import ON_UPLOADS
from pagefl.trust.hostile import Attack, Attacked, chosen

from . import halves
from .settings import Settings
from .workers import SharedRows


def hostile_clients(settings: Settings, clients: int) -> Integers:
    """The hostile ones of so many clients."""
    if settings.attack.name == "none":
        return np.empty(0, np.int64)
    return chosen(clients, settings.attack.share, settings.seed)


def with_hostile(clients: Clients, server: ServerHalf, settings: Settings) -> Clients:
    """These clients. From now on the server sees the uploads of the hostile ones as the attack makes them."""
    attack = settings.attack
    if attack.name not in ON_UPLOADS:
        return clients
    who = hostile_clients(settings, server.clients)
    known = Attack(attack.name, attack.factor, attack.strength, settings.seed, halves.defence_of(settings))
    device = settings.device
    allocate = SharedRows(None) if device == "cpu" else partial(torch.zeros, device=device)
    source = server.source = Attacked(server.source, server.uploads, who, known, allocate)
    return HostileClients(clients, server, source)


def check_not_attacked(settings: Settings, what: str) -> None:
    if settings.attack.name != "none":
        raise UserError(
            f"attack.name = {settings.attack.name}: attacks are simulated by `pagefl run` only, and {what} "
            "has none; expected none"
        )


class HostileClients:
    """The clients of a game (see `game.Clients`). After their answer, the hostile uploads are replaced."""

    def __init__(self, clients: Clients, server: ServerHalf, source: Attacked) -> None:
        self.clients, self.server, self.source = clients, server, source

    def meet(self, orders: Orders) -> Answer | None:
        return self.clients.meet(orders)

    def answer(self, orders: Orders) -> Answer:
        answer = self.clients.answer(orders)
        self.source.replace(orders.round, answer.clients, self.server.origin)
        return answer

    def try_steps(self, orders: Orders) -> Trials:
        return self.clients.try_steps(orders)

    def take_step(self, orders: Orders, step: Step) -> Tuned:
        return self.clients.take_step(orders, step)

    def state(self) -> State:
        return self.clients.state()

    def load(self, tensors: State) -> None:
        self.clients.load(tensors)
