"""Simulated time of a run: its fleet, its clock, and what cannot be combined with them."""

from pathlib import Path

import numpy as np

from pagefl.core.errors import UserError
from pagefl.core.flops import of_training
from pagefl.core.server import ServerHalf
from pagefl.devices import table
from pagefl.devices.barrier import Barrier
from pagefl.devices.fleet import FLEETS, Fleet
from pagefl.devices.selection import Oort
from pagefl.game.clock import Clock
from pagefl.game.follower import Follower
from pagefl.game.protocol import ServerPolicy

from .by_class import Classes
from .settings import DevicesSettings, Settings

HELD = 10_000  # clients whose devices are looked up once


def check(settings: Settings) -> None:
    """Refuse what contradicts itself or another setting."""
    own, usual = settings.devices, DevicesSettings()
    if own.name == "none":
        for name in DevicesSettings.model_fields:
            if (value := getattr(own, name)) != getattr(usual, name):
                raise UserError(
                    f"devices.{name} = {value}: there is no simulated time while devices.name = none; choose "
                    f"devices, such as phones, or leave {name} out"
                )
        return
    if own.barrier == "deadline" and not own.deadline:
        raise UserError("devices.deadline = 0: devices.barrier = deadline needs one; expected seconds")
    if own.over > 1 and own.barrier != "first":
        raise UserError(
            f"devices.over = {own.over:g}: more clients than are waited for are drawn with devices.barrier = "
            "first alone; expected 1"
        )
    if own.late == "buffer":
        _check_buffer(settings)
    if settings.privacy.epsilon:
        _check_private(settings)


def _check_buffer(settings: Settings) -> None:
    for name, value, expected in (
        ("devices.barrier", settings.devices.barrier, ("deadline", "first")),
        ("reward", settings.reward, ("aggregate",)),
    ):
        if value not in expected:
            raise UserError(f"{name} = {value}: with devices.late = buffer, expected {' or '.join(expected)}")


def _check_private(settings: Settings) -> None:
    """Everybody takes part by chance alone. Neither others nor the clock may have a say in it."""
    own = settings.devices
    for name, value, expected in (("barrier", own.barrier, "wait"), ("select", own.select, "random")):
        if value != expected:
            raise UserError(
                f"devices.{name} = {value}: with privacy.epsilon = {settings.privacy.epsilon:g}, each client "
                f"takes part by chance alone, whatever others do; expected {expected}"
            )


def check_simulated(settings: Settings, what: str) -> None:
    if settings.devices.name != "none":
        raise UserError(
            f"devices.name = {settings.devices.name}: time is simulated by `pagefl run` alone, not "
            f"in {what}; expected none"
        )


def fleet_of(settings: Settings, half: ServerHalf) -> Fleet | None:
    """The devices of all clients."""
    own, clients = settings.devices, half.clients
    if own.name == "none":
        return None
    if own.name not in FLEETS:
        found: Fleet = table.read(Path(own.name), clients)
    else:
        example = half.data["game"].x[:1]
        scale = of_training(half.model.module, example) / own.reference if own.reference else 1.0
        found = FLEETS[own.name](settings.seed, scale, own.hours)
    if settings.privacy.epsilon and found.sleeps:
        raise UserError(
            f"devices.name = {own.name}: with privacy.epsilon = {settings.privacy.epsilon:g}, each client "
            "takes part by chance alone, not by the hour; expected devices that are always available, such "
            "as phones with devices.hours = 24"
        )
    return table.held(found, clients) if clients <= HELD else found


def classes_of(follower: Follower) -> Classes | None:
    """Of all clients' devices. None where there are none, or where not all clients are at hand."""
    if not (isinstance(follower.clock, Clock) and follower.everybody):
        return None
    fleet = follower.clock.fleet
    return Classes(fleet.classes, fleet.of(np.arange(follower.half.clients)).kind)


def clock_of(settings: Settings, half: ServerHalf, fleet: Fleet, policy: ServerPolicy) -> Clock:
    own = settings.devices
    if own.late == "buffer" and policy.looks_at_uploads:
        raise UserError(
            f"devices.late = buffer: {type(policy).__name__} looks at single uploads, and late ones are of "
            "another round; choose players that do not, such as fixed, or devices.late = drop"
        )
    return Clock(
        half,
        fleet,
        Barrier(own.barrier, own.deadline),
        share=settings.participation,
        over=own.over,
        late=own.late,
        selection=Oort(settings.seed, half.clients) if own.select == "oort" else None,
    )
