"""Plays rounds and tells of them; holds all that a resume needs."""

from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pagefl.core.errors import UserError
from pagefl.core.federation import Federation, Trained
from pagefl.game.equilibrium import Rest, Watch
from pagefl.game.game import FederatedGame, Followed, Led
from pagefl.game.rules import Bias

from .demand import Demand
from .record import Record, finite
from .settings import Settings


class NobodyLeft(UserError):
    """Every client of a round was quarantined: the round did not happen."""


class Rounds:
    def __init__(self, game: FederatedGame, settings: Settings, demand: Demand) -> None:
        self.game, self.settings, self.demand = game, settings, demand
        self.federation: Federation = game.federation
        self.round = 0
        self.equilibrium: int | None = None  # the round in which the game came to rest
        self.payoffs = {"server": 0.0, "clients": 0.0}
        test, reward = game.begin()
        self.scores = {"test_loss": test.loss, "test_accuracy": test.accuracy, "train_loss": reward.loss}
        rest = Rest(settings.equilibrium_window, settings.equilibrium_models, settings.equilibrium_payoffs)
        self.watch = Watch(rest) if settings.stop == "equilibrium" else None
        self._look_again()

    @property
    def over(self) -> bool:
        return self.round >= self.settings.rounds or self.equilibrium is not None

    def play(self) -> tuple[Record, Record]:
        started = perf_counter()
        self.round += 1
        bias = self.demand.at(self.round)
        led = self.game.lead(self.round, bias)
        self._check(led.trained)
        followed = self.game.follow(self.round, led, bias)
        self._check_server(followed)
        discount = self.settings.gamma**self.round
        self.payoffs["server"] += discount * followed.reward
        self.payoffs["clients"] += discount * float(led.rewards.mean())
        for name, scores in (("test", led.trained.test), ("train", led.trained.train)):
            self.scores[f"{name}_loss"][led.trained.ids] = scores.loss
        self.scores["test_accuracy"][led.trained.ids] = led.trained.test.accuracy
        if self.watch and self.watch.at_rest(*self._models(), followed.reward, float(led.rewards.mean())):
            self.equilibrium = self.round
        return self._entry(led, followed, bias, perf_counter() - started), self._clients(led, followed)

    def state(self) -> dict[str, Tensor]:
        scores = {f"scores.{name}": torch.from_numpy(values) for name, values in self.scores.items()}
        watch = {f"watch.{name}": value for name, value in self.watch.tensors.items()} if self.watch else {}
        return {**self.federation.state(), **self.game.tensors, **scores, **watch}

    def facts(self) -> dict[str, Any]:
        return {"round": self.round, "payoffs": self.payoffs, "equilibrium": self.equilibrium, "over": self.over}

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        own = {name: value.shape for name, value in self.state().items() if ".replay." not in name}
        if {name: value.shape for name, value in tensors.items() if ".replay." not in name} != own:
            raise UserError("the checkpoint is of another task, model, algorithm or players than spec.toml; restore the spec")
        self.federation.load(tensors)
        self.game.load(tensors)
        self.scores = {name: tensors[f"scores.{name}"].numpy().copy() for name in self.scores}
        if self.watch:
            for name, value in self.watch.tensors.items():
                value.copy_(tensors[f"watch.{name}"])
        self.round, self.payoffs, self.equilibrium = (facts[name] for name in ("round", "payoffs", "equilibrium"))
        self._look_again()

    def _models(self) -> tuple[Tensor, Tensor]:
        return self.federation.server["model"], self.federation.personal

    def _look_again(self) -> None:
        if self.watch:
            self.watch.remember(*self._models())

    def _check(self, trained: Trained) -> None:
        bad, lr = trained.quarantined.tolist(), self.settings.lr
        if not bad or (len(trained.ids) and self.settings.on_bad_upload != "stop"):
            return
        names = ", ".join(map(str, bad[:5])) + ", …" * (len(bad) > 5)
        who = f"client {names}" if len(bad) == 1 else f"{len(bad)} clients ({names})"
        sentence = f"round {self.round}: {who} uploaded values that are not finite; a smaller lr than {lr} may help"
        if len(trained.ids):
            raise UserError(sentence)
        self.round -= 1
        raise NobodyLeft(sentence)

    def _check_server(self, followed: Followed) -> None:
        """Where a number is not finite whose fault it is; a round later it would be the clients'."""
        if not np.isfinite(followed.weights).all():
            raise UserError(f"round {self.round}: the weights that the server's player chose are not finite")
        for name, value in self.federation.server.items():
            if value.is_floating_point() and not bool(value.isfinite().all()):
                rule = type(self.federation.algorithm).__name__
                raise UserError(f"round {self.round}: `aggregate` of {rule} made `{name}` not finite, from finite uploads")

    def _entry(self, led: Led, followed: Followed, bias: Bias, seconds: float) -> Record:
        local = self.scores["test_accuracy"]
        worst = np.sort(local)[: max(1, len(local) // 10)]
        losses = {"clients": led.losses or followed.taught, "server": followed.losses}
        return {
            "round": self.round,
            "global_accuracy": followed.test[1],
            "global_loss": finite(followed.test[0]),
            "local_accuracy": finite(local.mean()),
            "local_accuracy_before": finite(led.trained.before.accuracy.mean()),
            "local_loss": finite(self.scores["test_loss"].mean()),
            "local_std": finite(local.std()),
            "local_worst10": finite(worst.mean()),
            "train_loss": finite(self.scores["train_loss"].mean()),
            "game_loss": finite(followed.game[0]),
            "participants": len(led.trained.ids),
            "quarantined": len(led.trained.quarantined),
            **led.absent,
            "mean_lr": finite(led.lr.mean()),
            "mean_epochs": finite(led.epochs.mean()),
            "largest_weight": float(followed.weights.max()),
            "smallest_weight": float(followed.weights.min()),
            "reward_server": finite(followed.reward),
            "reward_clients": finite(led.rewards.mean()),
            "payoffs": {who: finite(value) for who, value in self.payoffs.items()},
            "agents": {
                f"{who}_{side}": finite(getattr(loss, side).mean())
                for who, loss in losses.items()
                if loss is not None
                for side in ("critic", "actor")
            },
            "bias": str(bias),
            "protocol": self.settings.protocol,
            "seconds": seconds,
        }

    def _clients(self, led: Led, followed: Followed) -> Record:
        trained = led.trained

        def spread(ids: np.ndarray, values: np.ndarray) -> list[float | None]:
            """A value for every client; null for those it does not concern."""
            column: list[float | None] = [None] * self.federation.size
            for client, value in zip(ids.tolist(), values.tolist(), strict=True):
                column[client] = finite(value)
            return column

        return {
            "round": self.round,
            "local_accuracy": [finite(value) for value in self.scores["test_accuracy"]],
            "local_accuracy_before": [finite(value) for value in trained.before.accuracy],
            "train_loss": [finite(value) for value in self.scores["train_loss"]],
            "trained": np.isin(np.arange(self.federation.size), trained.ids).tolist(),
            "lr": spread(led.ids, led.lr),
            "epochs": spread(led.ids, led.epochs),
            "weight": spread(trained.ids, followed.weights),
            "reward": spread(trained.ids, led.rewards),
            **({} if led.seen is None else {"state": spread(led.ids, led.seen.accuracy)}),
            **({} if trained.candidates is None else {"server_state": spread(trained.ids, trained.candidates)}),
        }
