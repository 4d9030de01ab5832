"""The server's half of the game, whose clients are elsewhere: asks nodes, checks what they send, and follows."""

import math
from collections.abc import Mapping, Set
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from pagefl.agents.ddpg import Losses
from pagefl.core.algorithm import State
from pagefl.core.errors import UserError
from pagefl.core.evaluate import Scores
from pagefl.core.federation import Federation, Trained
from pagefl.game.game import FederatedGame, Led, Terms
from pagefl.game.players import Follower, Leaders, Setup
from pagefl.game.rules import Bias, Floats, Integers
from pagefl.runtime.run import Say

from .node import SIZE


class Reply(NamedTuple):
    """What a node has answered, checked for its form."""

    upload: State  # with what a client gives to a policy that is shared
    told: dict[str, float]


class Answers(NamedTuple):
    replies: dict[int, Reply]
    refused: dict[int, str]  # and why
    missing: int  # were asked, and did not answer in time
    late: int  # answered an earlier round, after its end


class Nodes(Protocol):
    """The clients, by their numbers, wherever they are."""

    def meet(self, sent: State) -> dict[int, dict[str, float]]:
        """What those tell that have not been met in this run, or have come again."""

    def ask(self, round: int, bias: Bias, sent: State, mean_size: float, who: list[int]) -> Answers: ...


class ServerHalf(Federation):
    """It holds its own examples, and of its clients what they uploaded last."""

    def __init__(self, *arguments: Any, clients: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.size = clients
        self.uploads = {name: rows.new_zeros(clients, *rows.shape[1:]) for name, rows in self.uploads.items()}
        self.personal = next(iter(self.uploads.values()), self.sent["model"])
        self.kept = {}

    @property
    def due(self) -> dict[str, torch.Size]:
        """What a client uploads, by name and shape."""
        return {name: rows.shape[1:] for name, rows in self.uploads.items()}

    def state(self) -> State:
        return {f"server.{name}": value for name, value in self.server.items()}


class RemoteGame(FederatedGame):
    def __init__(
        self,
        federation: ServerHalf,
        nodes: Nodes,
        leaders: Leaders,
        follower: Follower,
        setup: Setup,
        terms: Terms,
        *,
        largest_norm: float,
        fewest: float,
        say: Say,
    ) -> None:
        """`largest_norm`: of an upload, in multiples of the round's median. `fewest`: the share of those asked whose replies
        make a round."""
        super().__init__(federation, leaders, follower, setup, terms)
        self.nodes, self.sizes, self.largest_norm, self.fewest, self.say = nodes, setup.sizes, largest_norm, fewest, say
        self.given = set(leaders.lessons(np.array([0])))  # names of what clients give to a policy that is shared
        nobody = np.full(len(self.sizes), np.nan)
        self.before = Scores(nobody.copy(), nobody.copy())
        self.first = {name: nobody.copy() for name in ("test_accuracy", "test_loss", "train_loss")}

    def begin(self) -> tuple[Scores, Scores]:
        self._meet()
        first = {name: values.copy() for name, values in self.first.items()}
        test = Scores(first["test_loss"], first["test_accuracy"])
        return test, Scores(first["train_loss"], np.full(len(self.sizes), np.nan))

    def lead(self, round: int, bias: Bias, ids: Integers | None = None) -> Led:
        """Each node looks at W, learns, chooses, and trains; what it sends back is believed only when it is checked."""
        if ids is None:
            ids = self.federation.participants(round, self.terms.participation)
        self._meet()
        known = self.sizes[self.sizes > 0]
        answers = self.nodes.ask(round, bias, self._sent(), float(known.mean()), ids.tolist())
        if len(answers.replies) < self.fewest * len(ids):
            raise UserError(
                f"round {round}: {len(answers.replies)} of {len(ids)} clients answered, and deploy.fewest = {self.fewest}; "
                "start the nodes that are missing and give the same command again: it goes on from its checkpoint"
            )
        good, refused = self._checked(answers)
        for number, reason in sorted(refused.items()):
            self.say(f"round {round}: client {number} is quarantined: {reason}")
        return self._led(good, refused, {"missing": answers.missing, "late": answers.late}, answers.replies)

    def _sent(self) -> State:
        return {**{name: value[0] for name, value in self.federation.sent.items()}, **self.leaders.shared}

    def _meet(self) -> None:
        for number, told in self.nodes.meet(self._sent()).items():
            self.sizes[number] = told[SIZE]
            for name, values in self.first.items():
                values[number] = told.get(name, np.nan)
            self._note_before(number, told)

    def _note_before(self, number: int, told: Mapping[str, float]) -> None:
        self.before.accuracy[number] = told.get("before_accuracy", np.nan)
        self.before.loss[number] = told.get("before_loss", np.nan)

    def _checked(self, answers: Answers) -> tuple[list[int], dict[int, str]]:
        """Finite, and no larger than the others': a single upload must not become the model, nor a single lesson the policy."""
        refused = dict(answers.refused)
        for number, reply in answers.replies.items():
            if self.terms.reward == "weighted-local" and np.isnan(reply.told["train_loss"]):
                refused[number] = "it does not tell the loss of which the server's reward is made"
        for what, names in (("lesson", self.given), ("upload", set(self.federation.uploads))):
            norms = {number: _norm(reply.upload, names) for number, reply in answers.replies.items()}
            finite = sorted(norm for norm in norms.values() if np.isfinite(norm))
            usual = finite[(len(finite) - 1) // 2] if finite else 0.0  # the lower of two: one of two clients is no majority
            for number, norm in norms.items():
                if not np.isfinite(norm):
                    refused[number] = f"its {what} is not finite"
                elif usual and norm > self.largest_norm * usual:
                    refused[number] = f"its {what}'s norm is {norm:.3g}, {norm / usual:.0f} times the median"
        return [number for number in answers.replies if number not in refused], refused

    def _led(self, good: list[int], refused: dict[int, str], absent: Mapping[str, int], replies: dict[int, Reply]) -> Led:
        ids = np.array(good, np.int64)
        for number in good:
            for name, rows in self.federation.uploads.items():
                rows[number] = replies[number].upload[name]
            self._note_before(number, replies[number].told)

        def told(name: str) -> Floats:
            return np.array([replies[number].told.get(name, np.nan) for number in good])

        candidates = None
        if self.follower.sees:
            chosen = {name: rows[torch.from_numpy(ids)] for name, rows in self.federation.uploads.items()}
            candidates = self.federation.look(chosen, torch.ones(len(ids), dtype=torch.bool), self.server_role)
        train = Scores(told("train_loss"), np.full(len(ids), np.nan))
        trained = Trained(
            ids,
            np.array(sorted(refused), np.int64),
            Scores(told("test_loss"), told("test_accuracy")),
            train,
            train,
            self.before,
            candidates,
        )
        losses = Losses(torch.from_numpy(told("critic_loss")), torch.from_numpy(told("actor_loss")))
        learning = None if bool(losses.critic.isnan().all()) else losses
        lessons = {name: torch.stack([replies[number].upload[name] for number in good]) for name in self.given if good}
        return Led(ids, told("lr"), told("epochs"), None, trained, told("reward"), learning, lessons, dict(absent))

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The server's agent, and what it knows of its clients."""
        known = {"sizes": self.sizes, "before_accuracy": self.before.accuracy, "before_loss": self.before.loss}
        return {**super().tensors, **{f"nodes.{name}": torch.from_numpy(values) for name, values in known.items()}}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Who was not there when it was written keeps what was told since."""
        super().load(tensors)
        there = tensors["nodes.sizes"] > 0
        for name, value in self.tensors.items():
            if name.startswith("nodes."):
                value.copy_(torch.where(there, tensors[name], value))


def _norm(upload: State, names: Set[str]) -> float:
    return math.sqrt(sum(float(upload[name].double().square().sum()) for name in names))
