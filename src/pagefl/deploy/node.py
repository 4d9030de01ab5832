"""Node: one client beside its data. It plays the clients' turn and keeps its state on its own disk."""

from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from pagefl.core import personal
from pagefl.core.algorithm import State
from pagefl.core.errors import UserError
from pagefl.core.examples import ClientData
from pagefl.core.personal import Step
from pagefl.experiments.spec import RunSpec
from pagefl.game.leaders import Leaders
from pagefl.game.messages import SIZE, Answer, Orders
from pagefl.runtime import checkpoint, halves
from pagefl.runtime.directory import RunDirectory
from pagefl.runtime.simulation import one_numeric_mode

from .told import HOLDOUT

PERSONAL = "personal"  # folder of the client's own model, after the personal step
TELLS = {  # what a spec may let a client report, besides its upload and its number of examples
    "accuracy": ("test_accuracy", "before_accuracy"),
    "loss": ("test_loss", "before_loss", "train_loss"),
    "moves": ("lr", "epochs", "gradients", "seconds"),
    "rewards": ("reward", "critic_loss", "actor_loss"),
    "holdout": (),
}
REWARDS = {"reward", "train_loss"}  # computed only if somebody plays for them


def told_of_step(spec: RunSpec, step: Step | None) -> set[str]:
    """What every node reports of its personal step. None: of all that it tries."""
    tried = HOLDOUT[: len(personal.choices(spec.lr, spec.epochs))]
    found = {"holdout": tried} if step is None else {"accuracy": ("personal_accuracy",)}
    found["moves"] = ("gradients",)
    return {name for group in spec.deploy.tells for name in found.get(group, ())}


def told_by(spec: RunSpec, rewarded: bool) -> set[str]:
    """What every node reports. `rewarded`: whether clients compute rewards."""
    named = {name for group in spec.deploy.tells for name in TELLS[group]}
    if spec.protocol == "released":  # rewards are made of test losses
        named -= {"train_loss"}
    return {SIZE, *(named if rewarded else named - REWARDS)}


class Node:
    """One client on its own machine.

    It keeps its state of the last two rounds, so that a restarted server can repeat its last round.
    """

    def __init__(self, spec: RunSpec, number: int, data: ClientData, folder: Path, run: str) -> None:
        self.spec, self.folder = spec, folder / run
        module = spec.make_task().fresh_module(spec.seed)
        begin = halves.start(module, spec.make_algorithm(), spec, data.train)
        self.row = begin.row
        self.block = halves.block(begin, halves.resident(begin, data, number))
        half = halves.client_half(begin, self.block)
        setup = halves.setup_of(spec, 1, number)
        self.leaders = Leaders(half, spec.make_players().client_policy(setup), setup, halves.terms_of(spec))

    @property
    def due(self) -> tuple[dict[str, torch.Size], dict[str, torch.Size]]:
        """What the server sends, by name and shape: for the algorithm, and for the policy."""
        sent = {name: torch.Size(rows.shape[1:]) for name, rows in self.block.sent.items()}
        return sent, {name: value.shape for name, value in self.leaders.policy.received.items()}

    def meet(self, orders: Orders) -> dict[str, float]:
        """Evaluate the received model on this client's data."""
        with one_numeric_mode():
            answer = self.leaders.meet(orders)
        assert answer is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / checkpoint.NAME).exists():
            self._save(0)
        return self._told(answer)

    def answer(self, orders: Orders) -> tuple[State, dict[str, float]]:
        """Play one round. Its result is on disk before it is sent."""
        # Locked: a process that a killed node left behind may still be running.
        with RunDirectory(self.folder).alone(), one_numeric_mode():
            self._load(orders.round)
            begun = perf_counter()
            answer = self.leaders.answer(orders)
            answer.told["seconds"][:] = perf_counter() - begun
            self._save(orders.round)
        experience = self.leaders.policy.experience(np.array([0]))
        upload = {name: rows[0] for name, rows in {**self.block.storage.uploads, **experience}.items()}
        if not len(answer.clients):  # it diverged: NaN tells the server to leave it out
            upload = {name: torch.full_like(value, torch.nan) for name, value in upload.items()}
        return upload, self._told(answer)

    def personal_step(self, orders: Orders, step: Step | None) -> dict[str, float]:
        """Try every personal step from the received model, or take one. The model stays on this node."""
        with RunDirectory(self.folder).alone(), one_numeric_mode():
            self._load(orders.round + 1)
            if step is None:
                trials = self.leaders.try_steps(orders)
                found = dict(zip(HOLDOUT, trials.losses[0].tolist(), strict=False))
                found["gradients"] = trials.gradients
            else:
                tuned = self.leaders.take_step(orders, step)
                found = {"personal_accuracy": float(tuned.accuracy[0]), "gradients": tuned.gradients}
                (self.folder / PERSONAL).mkdir(exist_ok=True)
                own = {"personal": self.block.stepped[0]}
                checkpoint.save(self.folder / PERSONAL, own, {"round": orders.round})
        return {name: found[name] for name in told_of_step(self.spec, step)}

    def _told(self, answer: Answer) -> dict[str, float]:
        found = {name: float(values[0]) for name, values in answer.told.items()}
        found["gradients"] = answer.gradients
        return {name: found[name] for name in told_by(self.spec, self.leaders.rewarded)}

    def _save(self, round: int) -> None:
        checkpoint.save(self.folder, self.leaders.state(), {"round": round})

    def _load(self, round: int) -> None:
        """Load the state from before this round."""
        current, previous = self.folder / checkpoint.NAME, self.folder / checkpoint.PREVIOUS
        for path in (current, previous):
            try:
                tensors, facts = checkpoint.read(path)
            except checkpoint.Damaged:
                continue
            if facts["round"] < round:
                if path == previous:  # later rounds will be played again
                    previous.replace(current)
                self.leaders.load(tensors)
                return
        raise UserError(
            f"{self.folder}: there is no state from before round {round}; restore it, or start a new run"
        )
