"""Node: one client where its data are. It plays the clients' half of the game, and keeps its state on its own disk."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pagefl.core.algorithm import State
from pagefl.core.errors import UserError
from pagefl.core.examples import Splits
from pagefl.experiments.spec import RunSpec
from pagefl.game.game import FederatedGame
from pagefl.game.players import Fixed
from pagefl.game.rules import Bias, Floats, Integers
from pagefl.runtime import checkpoint
from pagefl.runtime.directory import RunDirectory
from pagefl.runtime.run import agreed, make_federation, one_numeric_mode
from pagefl.runtime.task import Task

SIZE = "size"
TELLS = {  # what a spec may let a client tell, beside its upload and the number of its examples
    "accuracy": ("test_accuracy", "before_accuracy"),
    "loss": ("test_loss", "before_loss", "train_loss"),
    "moves": ("lr", "epochs"),
    "rewards": ("reward", "critic_loss", "actor_loss"),
}


ME = np.array([0])  # the only client here


def told_by(spec: RunSpec) -> set[str]:
    return {SIZE, *(name for group in spec.deploy.tells for name in TELLS[group])}


class Node:
    """What it keeps is from the last two rounds, so that a server that was killed may ask for its last one again."""

    def __init__(
        self, spec: RunSpec, number: int, data: Splits, folder: Path, run: str, mean_size: float | None = None
    ) -> None:
        self.spec, self.folder = spec, folder / run
        task = spec.make_task()
        own = Task(task.name, task.module, data)
        federation = make_federation(own, spec.make_algorithm(), spec, first=number, mean_size=mean_size)
        setup, terms = agreed(federation, spec, first=number)
        self.federation = federation
        self.game = FederatedGame(federation, spec.make_players().sides(setup)[0], Fixed(setup), setup, terms)

    @property
    def due(self) -> dict[str, torch.Size]:
        """What the server sends: the algorithm's, and what sharing players act by."""
        sent = {name: torch.Size(rows.shape[1:]) for name, rows in self.federation.sent.items()}
        return {**sent, **{name: value.shape for name, value in self.game.leaders.shared.items()}}

    def begin(self, sent: State) -> dict[str, float]:
        """The first model on this client's data."""
        with one_numeric_mode():
            self._receive(sent)
            test, reward = self.game.begin()
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / checkpoint.NAME).exists():
            self._save(0)
        scores = {"test_accuracy": test.accuracy, "test_loss": test.loss, "train_loss": reward.loss}
        scores |= {"before_accuracy": test.accuracy, "before_loss": test.loss}
        return self._tell({name: float(value[0]) for name, value in scores.items()})

    def lead(self, round: int, bias: Bias, sent: State) -> tuple[State, dict[str, float]]:
        """Look at what was sent, choose, train, learn, and keep the outcome before anybody hears of it."""
        with RunDirectory(self.folder).alone(), one_numeric_mode():  # one that a killed node left behind may still be at work
            self._load(round)
            self._receive(sent)
            led = self.game.lead(round, bias, ME)
            self._save(round)
        trained = led.trained
        upload = {name: rows[0] for name, rows in self.federation.uploads.items()}
        upload |= {name: rows[0] for name, rows in led.lessons.items()}
        found: dict[str, Floats | Integers | Tensor] = {
            "lr": led.lr,
            "epochs": led.epochs,
            "before_accuracy": trained.before.accuracy,
            "before_loss": trained.before.loss,
        }
        found |= {"critic_loss": led.losses.critic, "actor_loss": led.losses.actor} if led.losses else {}
        if len(trained.ids):
            found |= {"test_accuracy": trained.test.accuracy, "test_loss": trained.test.loss}
            found |= {"train_loss": trained.train.loss, "reward": led.rewards}
        else:  # it diverged: the server is to see that, and to leave it out
            upload = {name: torch.full_like(value, torch.nan) for name, value in upload.items()}
        return upload, self._tell({name: float(value[0]) for name, value in found.items()})

    def _receive(self, sent: State) -> None:
        policy = self.game.leaders.shared
        self.federation.receive({name: value for name, value in sent.items() if name not in policy})
        for name, value in policy.items():
            value.copy_(sent[name])

    def _tell(self, found: dict[str, float]) -> dict[str, float]:
        found[SIZE] = float(self.federation.data["train"].sizes[0])
        return {name: found.get(name, float("nan")) for name in told_by(self.spec)}

    def _state(self) -> State:
        return {**self.federation.state(), **self.game.tensors}

    def _save(self, round: int) -> None:
        checkpoint.save(self.folder, {n: v for n, v in self._state().items() if not n.startswith("server.")}, {"round": round})

    def _load(self, round: int) -> None:
        """As it was before this round."""
        current, previous = self.folder / checkpoint.NAME, self.folder / checkpoint.PREVIOUS
        for path in (current, previous):
            try:
                tensors, facts = checkpoint.read(path)
            except checkpoint.Damaged:
                continue
            if facts["round"] < round:
                if path == previous:  # what came after it is to be played again
                    previous.replace(current)
                self.federation.load({**self.federation.state(), **tensors})
                self.game.load(tensors)
                return
        raise UserError(f"{self.folder}: there is no state from before round {round}; restore it, or start a new run")
