"""A private run: what it refuses, the mechanism between clients and server, and the budget."""

from typing import Any

import numpy as np
from torch import Tensor

from pagefl.core.errors import UserError
from pagefl.core.server import ServerHalf
from pagefl.game.protocol import ClientPolicy, ServerPolicy
from pagefl.trust.privacy.accounting import Account, Steps, noise_for
from pagefl.trust.privacy.clipping import Norm
from pagefl.trust.privacy.mechanism import Mechanism
from pagefl.trust.privacy.randomness import Randomness

from .settings import PrivacySettings, Settings

NOBODY = np.empty(0, np.int64)


def check(settings: Settings) -> None:
    """Refuse what would make epsilon false."""
    own, usual = settings.privacy, PrivacySettings()
    if not own.epsilon:
        for name in PrivacySettings.model_fields:
            if (value := getattr(own, name)) != getattr(usual, name):
                raise UserError(
                    f"privacy.{name} = {value}: there is no privacy while privacy.epsilon = 0; set an "
                    f"epsilon, or leave {name} out"
                )
        return
    told = f"privacy.epsilon = {own.epsilon:g}"
    if settings.personal.when != "never":
        raise UserError(
            f"{told}: the personal step is chosen by the clients' hold-out losses, which reach the server "
            'outside their clipped uploads; expected personal.when = "never"'
        )
    if settings.stop == "equilibrium":
        raise UserError(
            f"{told}: an equilibrium is found by the clients' own models and rewards, and when a run stops "
            'would tell of them; expected stop = "rounds"'
        )
    defence = settings.defence
    if defence.name != "none" or defence.before != "none":
        raise UserError(
            f"{told}: a defence looks at single uploads, and how far one client can move its result is not "
            'known; expected defence.name and defence.before = "none"'
        )
    if settings.reward == "weighted-local":
        raise UserError(f'{told}: reward = "weighted-local" needs each client\'s loss; expected "aggregate"')
    if settings.on_bad_upload == "stop":
        raise UserError(
            f"{told}: a run that stops at a bad upload tells of one client; expected "
            'on_bad_upload = "quarantine", with which it counts as zero'
        )


def solved(settings: Settings) -> PrivacySettings:
    """With the noise that lets the run play all its rounds, unless one is given."""
    own = settings.privacy
    if not own.epsilon or own.noise:
        return own
    noise = noise_for(own.accountant, own.epsilon, own.delta, settings.rounds, settings.participation)
    return own.model_copy(update={"noise": noise})


def check_players(settings: Settings, server: ServerPolicy, clients: ClientPolicy) -> None:
    """A client may choose by its own data, but only its clipped upload may tell of it."""
    if not settings.privacy.epsilon:
        return
    kind = type(clients)
    learns = kind.reward is not ClientPolicy.reward or kind.experience is not ClientPolicy.experience
    if type(server) is not ServerPolicy or learns or clients.looks_at_others:
        raise UserError(
            f"privacy.epsilon = {settings.privacy.epsilon:g}: the players ({kind.__name__}, "
            f"{type(server).__name__}) use states, rewards, scores or weights of single clients, outside "
            "their clipped uploads; choose players that do not, such as fixed, schedule or cosine"
        )


class PrivateRun:
    """The mechanism, installed in the server half, and what rounds may cost."""

    def __init__(self, settings: Settings, half: ServerHalf, randomness: Randomness) -> None:
        check(settings)
        self.own, self.half, self.randomness = settings.privacy, half, randomness
        if not self.own.noise:
            raise UserError("privacy.noise = 0: it is not solved yet; expected a spec that is complete")
        if not half.source.names:
            raise UserError(
                f"privacy.epsilon = {self.own.epsilon:g}: clients of {type(half.algorithm).__name__} upload "
                "nothing, so that there is nothing to protect; expected 0"
            )
        share = settings.participation
        self.account = Account(Steps(self.own.accountant, self.own.noise, share, self.own.delta))
        self.rounds = self.account.affordable(self.own.epsilon, settings.rounds)  # that may be played
        if not self.rounds:
            raise UserError(
                f"privacy.noise = {self.own.noise:g}: one round would cost epsilon = "
                f"{self.account.epsilon(1):.4g}, and privacy.epsilon = {self.own.epsilon:g}; expected more "
                "noise, or a smaller participation"
            )
        half.chances = randomness.uniforms
        # An algorithm that looks at single uploads is refused now, and not after the first training.
        half.treatments = (self._mechanism(share),)
        half.aggregated(0, NOBODY, np.empty(0))
        self.mechanism = self._mechanism(share)
        half.treatments = (self.mechanism,)

    def _mechanism(self, share: float) -> Mechanism:
        half, own = self.half, self.own
        norm = Norm(own.clip, own.adaptive, own.noise, share * half.clients)
        return Mechanism(half.algorithm, norm, share, self.randomness)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Everything that a round changes."""
        return {"privacy.clip": self.mechanism.norm.value}

    def entry(self, round: int) -> dict[str, Any]:
        """What the record of a round tells, after it was played."""
        found = {"epsilon": self.account.epsilon(round), "clip": self.mechanism.clipped_at}
        return {**found, "noise": self.randomness.kind}

    def ending(self) -> str:
        """Why no further round is played."""
        spent, next_round = self.account.epsilon(self.rounds), self.account.epsilon(self.rounds + 1)
        return (
            f"privacy.epsilon = {self.own.epsilon:g}: the run ends after round {self.rounds}, at epsilon = "
            f"{spent:.4g}, since round {self.rounds + 1} would bring it to {next_round:.4g}"
        )
