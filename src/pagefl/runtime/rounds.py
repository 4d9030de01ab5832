"""Plays rounds, makes their records, and holds everything that a resume needs."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from torch import Size, Tensor

from pagefl.core.arrays import Floats, Integers
from pagefl.core.block import STEPPED
from pagefl.core.errors import UserError
from pagefl.core.personal import Step, Tuned
from pagefl.game.equilibrium import Tolerances, Watch
from pagefl.game.follower import KNOWN, Round
from pagefl.game.game import Game, NobodyLeft
from pagefl.game.messages import SCORES, SIZE

from .demand import Demand
from .record import Record, finite
from .settings import Settings
from .workers import Say

TOLD = [KNOWN + name for name in SCORES]
PATIENCE = 1.0  # seconds of a round from which its personal step is announced: it takes many times as long
Measure = Callable[[], Record]  # further entries of the record of a round whose accuracies are measured
Models = Callable[[], tuple[Tensor, Tensor]]  # the shared model and the personal ones


class Rounds:
    def __init__(
        self,
        game: Game,
        settings: Settings,
        demand: Demand,
        models: Models | None = None,
        say: Say = lambda message: None,
        measure: Measure = dict,
    ) -> None:
        """`models`: the models to watch if the run stops at an equilibrium. `measure`: the user's metrics."""
        self.measure = measure
        self.game, self.settings, self.demand, self.models, self.say = game, settings, demand, models, say
        self.round = 0
        self.equilibrium: int | None = None  # the round in which the game converged
        self.payoffs = {"server": 0.0, "clients": 0.0}
        self.gradients = {"training": 0.0, "personal": 0.0}  # evaluated so far, in examples
        self.chance = _most_frequent(game.follower.half.data["server_test"].y)
        game.meet()
        tolerances = Tolerances(
            settings.equilibrium_window, settings.equilibrium_models, settings.equilibrium_payoffs
        )
        self.watch = Watch(tolerances) if settings.stop == "equilibrium" and models else None
        self._remember_models()

    @property
    def judged(self) -> bool:
        """Whether accuracies are measured in this round."""
        return self.round % self.settings.judge_every == 0 or self.round == self.settings.rounds

    @property
    def personal(self) -> bool:
        """Whether the personal step is taken after this round."""
        when, judged = self.settings.personal.when, self.round // self.settings.judge_every
        if when == "never":
            return False
        return self.over or (when != "end" and self.judged and judged % when == 0)

    @property
    def over(self) -> bool:
        return self.round >= self.settings.rounds or self.equilibrium is not None

    def play(self) -> tuple[Record, Record]:
        started = perf_counter()
        self.round += 1
        try:
            played = self.game.play(self.round, self.demand.at(self.round), self.judged)
        except NobodyLeft:
            self.round -= 1
            raise
        discount, earned = self.settings.gamma**self.round, self._clients_reward(played)
        for who, reward in (("server", played.reward), ("clients", earned)):
            self.payoffs[who] += 0.0 if np.isnan(reward) else discount * reward
        if self.watch and self.models and self.watch.converged(*self.models(), played.reward, earned):
            self.equilibrium = self.round
        self.gradients["training"] += played.answer.gradients
        seconds = perf_counter() - started
        step, tuned = self._personal_step(seconds) if self.personal else (None, None)
        entry = {**self._entry(played, seconds), **self._personal_entry(step, tuned)}
        entry |= self.measure() if self.judged else {}
        return entry, self._clients(played, tuned)

    def state(self) -> dict[str, Tensor]:
        watch = {f"watch.{name}": value for name, value in self.watch.tensors.items()} if self.watch else {}
        return {**self.game.state(), **watch}

    def facts(self) -> dict[str, Any]:
        return {
            "round": self.round,
            "payoffs": self.payoffs,
            "gradients": {name: finite(value) for name, value in self.gradients.items()},
            "equilibrium": self.equilibrium,
            "over": self.over,
        }

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        # that version's name for what is `known` here
        if any(name.startswith("scores.") for name in tensors):
            raise UserError(
                "the checkpoint was made by pagefl 0.1.0, and this version cannot go on from it; start a "
                "new run"
            )
        if missing := [name for name in self.facts() if name not in facts]:
            raise UserError(
                f"the checkpoint is not a run's: it has no {missing[0]}; restore it, or start a new run"
            )
        if _shapes(tensors) != _shapes(self.state()):
            raise UserError(
                "the checkpoint is of another task, model, algorithm or players than spec.toml; restore "
                "the spec"
            )
        self.game.load(tensors)
        if self.watch:
            for name, value in self.watch.tensors.items():
                value.copy_(tensors[f"watch.{name}"])
        self.round, self.payoffs, self.equilibrium = (
            facts[name] for name in ("round", "payoffs", "equilibrium")
        )
        self.gradients = {
            name: np.nan if value is None else value for name, value in facts["gradients"].items()
        }
        self._remember_models()

    def _remember_models(self) -> None:
        if self.watch and self.models:
            self.watch.remember(*self.models())

    def _clients_reward(self, played: Round) -> float:
        return _mean(played.answer.told["reward"][played.answer.clients])

    def _entry(self, played: Round, seconds: float) -> Record:
        told, asked = played.answer.told, played.orders.clients
        met = ~np.isnan(self.game.follower.known[SIZE])  # some clients of a deployment may be missing
        known = {name: values[met] for name, values in self.game.follower.known.items()}
        local = known["test_accuracy"] if played.orders.judged else np.full(1, np.nan)
        worst = np.sort(local)[: max(1, len(local) // 10)]
        taught = (
            None
            if played.taught is None
            else (float(played.taught.critic.mean()), float(played.taught.actor.mean()))
        )
        server = (
            None
            if played.losses is None
            else (float(played.losses.critic.mean()), float(played.losses.actor.mean()))
        )
        half, answer = self.game.follower.half, played.answer
        earned = {"server": played.reward, "clients": self._clients_reward(played)}
        clients = (_mean(told["critic_loss"]), _mean(told["actor_loss"]))
        agents = {"clients": taught if np.isnan(clients[0]) else clients, "server": server}
        return {
            "round": self.round,
            "judged": played.orders.judged,
            "global_accuracy": finite(played.test[1]),
            "global_loss": finite(played.test[0]),
            "global_chance": self.chance,
            "local_accuracy": finite(local.mean()),
            "local_accuracy_before": finite(_mean(told["before_accuracy"])),
            "local_loss": finite(known["test_loss"].mean() if played.orders.judged else np.nan),
            "local_std": finite(local.std()),
            "local_worst10": finite(worst.mean()),
            "train_loss": finite(known["train_loss"].mean()),
            "game_loss": finite(played.game[0]),
            "participants": len(played.answer.clients),
            "quarantined": len(played.answer.quarantined),
            **played.answer.absent,
            "mean_lr": finite(_mean(told["lr"][asked])),
            "mean_epochs": finite(_mean(told["epochs"][asked])),
            "largest_weight": float(played.weights.max()),
            "smallest_weight": float(played.weights.min()),
            **{f"reward_{who}": finite(reward) for who, reward in earned.items()},
            # a player that nobody pays has none
            "payoffs": {
                who: None if np.isnan(earned[who]) else finite(value) for who, value in self.payoffs.items()
            },
            "agents": {
                f"{who}_{part}": finite(loss)
                for who, losses in agents.items()
                if losses is not None
                for part, loss in zip(("critic", "actor"), losses, strict=True)
            },
            "bytes_down": len(asked) * _size(played.orders.sent, played.orders.policy),
            "bytes_up": len(answer.clients) * half.source.size + _size(answer.experience),
            "bias": str(played.orders.demand),
            "protocol": self.settings.protocol,
            "seconds": seconds,
        }

    def _personal_step(self, seconds: float) -> tuple[Step, Tuned]:
        """`seconds`: of the round before it."""
        if seconds > PATIENCE:
            self.say("choosing and taking the personal step …")
        step, tuned = self.game.personal_step(self.round)
        self.gradients["personal"] += tuned.gradients
        return step, tuned

    def _personal_entry(self, step: Step | None, tuned: Tuned | None) -> Record:
        """Null in rounds without a personal step, but for the gradients so far."""
        known = np.full(1, np.nan) if tuned is None else tuned.accuracy[~np.isnan(tuned.accuracy)]
        worst = np.sort(known)[: max(1, len(known) // 10)]
        return {
            "personal_accuracy": finite(_mean(known)),
            "personal_worst10": finite(_mean(worst)),
            "personal_step": None if step is None else step._asdict(),
            "gradients": finite(self.gradients["training"]),
            "gradients_personal": finite(self.gradients["personal"]),
        }

    def _clients(self, played: Round, tuned: Tuned | None) -> Record:
        known, told, clients = self.game.follower.known, played.answer.told, played.answer.clients
        states = {} if np.isnan(told["state"]).all() else {"state": told["state"]}
        if played.upload_accuracy is not None:
            states["server_state"] = self._of_all(clients, played.upload_accuracy)
        local = known["test_accuracy"]
        columns = {
            "local_accuracy": local if played.orders.judged else np.full_like(local, np.nan),
            "local_accuracy_before": told["before_accuracy"],
            "train_loss": known["train_loss"],
            "lr": told["lr"],
            "epochs": told["epochs"],
            "weight": self._of_all(clients, played.weights),
            "reward": told["reward"],
            **({} if tuned is None else {"personal_accuracy": tuned.accuracy}),
            **states,
        }
        trained = np.isin(np.arange(len(told["lr"])), clients).tolist()
        return {"round": self.round, "trained": trained} | {
            name: [finite(value) for value in values] for name, values in columns.items()
        }

    def _of_all(self, clients: Integers, values: Floats) -> Floats:
        """A value for every client; NaN for clients that are not listed."""
        column = np.full(self.game.follower.half.clients, np.nan)
        column[clients] = values
        return column


def _shapes(state: dict[str, Tensor]) -> dict[str, Size]:
    """Without what need not be there yet: experience, what clients tell, and models after a personal step."""
    return {
        name: value.shape
        for name, value in state.items()
        if ".replay." not in name and name != f"clients.{STEPPED}" and name not in TOLD
    }


def _size(*states: dict[str, Tensor]) -> int:
    """Bytes of these tensors."""
    return sum(value.nbytes for state in states for value in state.values())


def _most_frequent(labels: Tensor) -> float:
    """The share of the most frequent class: what a model that has learnt nothing can reach."""
    return float(labels.flatten().bincount().max()) / labels.numel()


def _mean(values: Floats) -> float:
    """The mean without NaN; NaN if nothing is left."""
    told = values[~np.isnan(values)]
    return float(told.mean()) if len(told) else float("nan")
