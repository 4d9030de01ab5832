"""Plays rounds, makes their records, and holds everything that a resume needs."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from torch import Size, Tensor

from pagefl.core.arrays import Floats, Integers
from pagefl.core.block import STEPPED, STEPPED_CLIENTS
from pagefl.core.errors import UserError
from pagefl.core.personal import Step, Tuned
from pagefl.core.sparse_rows import STORE
from pagefl.game.account import ROUNDING
from pagefl.game.clock import FLIGHT, Clock
from pagefl.game.equilibrium import Tolerances, Watch
from pagefl.game.follower import KNOWN, Round
from pagefl.game.game import Game, NobodyLeft
from pagefl.game.messages import SCORES, SIZE

from .demand import Demand
from .hostile import hostile_clients
from .privacy import PrivateRun
from .record import Record, finite
from .settings import Settings
from .workers import Say

TOLD = [KNOWN + name for name in SCORES]
STEPS = (f"clients.{STEPPED}", f"clients.{STEPPED_CLIENTS}")
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
        private: PrivateRun | None = None,
        measure: Measure = dict,
    ) -> None:
        """`models`: the models to watch if the run stops at an equilibrium. `measure`: the user's metrics."""
        self.measure = measure
        self.game, self.settings, self.demand, self.models, self.say = game, settings, demand, models, say
        self.private = private
        self.last = min(settings.rounds, private.rounds if private else settings.rounds)
        self.round = 0
        self.equilibrium: int | None = None  # the round in which the game converged
        self.payoffs = {"server": 0.0, "clients": 0.0}
        self.gradients = {"training": 0.0, "personal": 0.0}  # evaluated so far, in examples
        self.chance = _most_frequent(game.follower.half.data["server_test"].y)
        game.meet()
        # accuracies are those of honest clients
        self.honest = np.ones(game.follower.half.clients, bool)
        self.honest[hostile_clients(settings, len(self.honest))] = False
        tolerances = Tolerances(
            settings.equilibrium_window, settings.equilibrium_models, settings.equilibrium_payoffs
        )
        self.watch = Watch(tolerances) if settings.stop == "equilibrium" and models else None
        self._remember_models()

    @property
    def judged(self) -> bool:
        """Whether accuracies are measured in this round."""
        return self.round % self.settings.judge_every == 0 or self.round == self.last

    @property
    def personal(self) -> bool:
        """Whether the personal step is taken after this round."""
        when, judged = self.settings.personal.when, self.round // self.settings.judge_every
        if when == "never":
            return False
        return self.over or (when != "end" and self.judged and judged % when == 0)

    @property
    def over(self) -> bool:
        return self.round >= self.last or self.equilibrium is not None

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
        return {**self.game.state(), **watch, **(self.private.tensors if self.private else {})}

    def facts(self) -> dict[str, Any]:
        return {
            "round": self.round,
            "payoffs": self.payoffs,
            "gradients": {name: finite(value) for name, value in self.gradients.items()},
            "equilibrium": self.equilibrium,
            "over": self.over,
            **({"epsilon": self.private.account.epsilon(self.round)} if self.private else {}),
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
        for name, value in (self.private.tensors if self.private else {}).items():
            value.copy_(tensors[name])
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
        return _mean(played.answer.told.of("reward", played.answer.clients))

    def _entry(self, played: Round, seconds: float) -> Record:
        follower, told, asked = self.game.follower, played.answer.told, played.orders.clients
        met = ~np.isnan(follower.known[SIZE])  # some clients of a deployment may be missing
        if not follower.everybody:
            met = np.isin(follower.known.clients, played.answer.clients)
        met &= self.honest[follower.known.clients]
        known = {name: values[met] for name, values in follower.known.items()}
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
            "local_accuracy_before": finite(_mean(told["before_accuracy"][self.honest[told.clients]])),
            "local_loss": finite(known["test_loss"].mean() if played.orders.judged else np.nan),
            "local_std": finite(local.std()),
            "local_worst10": finite(worst.mean()),
            **({} if follower.everybody else self._of_sample(played)),
            "train_loss": finite(known["train_loss"].mean()),
            "game_loss": finite(played.game[0]),
            "participants": len(played.answer.clients),
            "quarantined": len(played.answer.quarantined),
            **played.answer.absent,
            **self._attacked(played),
            "mean_lr": finite(_mean(told.of("lr", asked))),
            "mean_epochs": finite(_mean(told.of("epochs", asked))),
            # in a private run, a round may have no participants
            "largest_weight": finite(played.weights.max() if len(played.weights) else np.nan),
            "smallest_weight": finite(played.weights.min() if len(played.weights) else np.nan),
            **(self.private.entry(self.round) if self.private else {}),
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
            "bytes_down": len(asked) * played.orders.size,
            "bytes_up": played.bytes_up,
            **self._timed(played),
            **self._budgets(played),
            "bias": str(played.orders.demand),
            "protocol": self.settings.protocol,
            "seconds": seconds,
        }

    def _of_sample(self, played: Round) -> Record:
        """Where not everybody is evaluated: of whom accuracies after and before training are the means."""
        sample = f"a fixed sample of {len(played.orders.sample)}"
        return {"local_of": "participants", "before_of": sample, "personal_of": sample}

    def _attacked(self, played: Round) -> Record:
        if self.settings.attack.name == "none":
            return {}
        return {"hostile": int((~self.honest[played.answer.clients]).sum())}

    def _timed(self, played: Round) -> Record:
        """What the round cost its clients. Late ones work to the end."""
        clock, told = self.game.follower.clock, played.answer.told
        if clock is None:
            return {}
        spent = {"device_seconds": told["seconds"], "energy": told["joules"]}
        known = {name: values for name, values in spent.items() if not np.isnan(values).all()}
        return {"clock": clock.now, **{name: float(np.nansum(values)) for name, values in known.items()}}

    def _budgets(self, played: Round) -> Record:
        """Prices, and how budgets were kept, of players that have some."""
        told, account = played.answer.told, self.game.follower.policy.account()
        asked = ~np.isnan(told["used"])
        entry: Record = {}
        if asked.any():
            over = told["used"][asked] > 1 + ROUNDING
            entry |= {"mean_multiplier": finite(_mean(told["multiplier"])), "over_budget": float(over.mean())}
        if account is not None:
            entry |= {
                "server_multiplier": finite(account.multiplier[0]),
                "server_used": finite(account.used[0]),
            }
        return entry

    def _personal_step(self, seconds: float) -> tuple[Step, Tuned]:
        """`seconds`: of the round before it."""
        if seconds > PATIENCE:
            self.say("choosing and taking the personal step …")
        step, tuned = self.game.personal_step(self.round)
        self.gradients["personal"] += tuned.gradients
        return step, tuned

    def _personal_entry(self, step: Step | None, tuned: Tuned | None) -> Record:
        """Null in rounds without a personal step, but for the gradients so far."""
        known = np.full(1, np.nan)
        if tuned is not None:
            known = tuned.accuracy[~np.isnan(tuned.accuracy) & self.honest[self.game.follower.tuned]]
        worst = np.sort(known)[: max(1, len(known) // 10)]
        return {
            "personal_accuracy": finite(_mean(known)),
            "personal_worst10": finite(_mean(worst)),
            "personal_step": None if step is None else step._asdict(),
            "gradients": finite(self.gradients["training"]),
            "gradients_personal": finite(self.gradients["personal"]),
        }

    def _clients(self, played: Round, tuned: Tuned | None) -> Record:
        follower, told, clients = self.game.follower, played.answer.told, played.answer.clients
        known = follower.known
        states = {} if np.isnan(told["state"]).all() else {"state": told["state"]}
        if played.upload_accuracy is not None:
            states["server_state"] = _spread(clients, played.upload_accuracy, known.clients)
        local = known["test_accuracy"]
        columns = {
            "local_accuracy": local if played.orders.judged else np.full_like(local, np.nan),
            "local_accuracy_before": told["before_accuracy"],
            "train_loss": known["train_loss"],
            "lr": told["lr"],
            "epochs": told["epochs"],
            "weight": _spread(clients, played.weights, known.clients),
            "reward": told["reward"],
            **(
                {}
                if tuned is None
                else {"personal_accuracy": _spread(follower.tuned, tuned.accuracy, known.clients)}
            ),
            **states,
        }
        who = {} if follower.everybody else {"client": known.clients.tolist()}
        if follower.clock is not None:
            columns["seconds"] = told["seconds"]
        trained = np.isin(known.clients, clients)
        late = {}
        if isinstance(follower.clock, Clock):
            failed = np.isin(known.clients, played.answer.quarantined)
            late = {"late": (~np.isnan(told["seconds"]) & ~trained & ~failed).tolist()}
        if not np.isnan(told["used"]).all():
            columns |= {name: told[name] for name in ("multiplier", "used")}
        hostile = {} if self.honest.all() else {"hostile": (~self.honest).tolist()}
        return {"round": self.round, **who, "trained": trained.tolist(), **late, **hostile} | {
            name: [finite(value) for value in values] for name, values in columns.items()
        }


def _spread(clients: Integers, values: Floats, among: Integers) -> Floats:
    """A value for each client among whom these are; NaN for the others."""
    column = np.full(len(among), np.nan)
    column[np.searchsorted(among, clients)] = values
    return column


def _shapes(state: dict[str, Tensor]) -> dict[str, Size]:
    """Without what need not be there yet: experience, what clients tell, models after a personal step, and
    the rows of clients that have taken part, or are at work."""
    return {
        name: value.shape
        for name, value in state.items()
        if ".replay." not in name
        and name not in STEPS
        and name not in TOLD
        and not name.startswith((STORE, FLIGHT))
    }


def _most_frequent(labels: Tensor) -> float:
    """The share of the most frequent class: what a model that has learnt nothing can reach."""
    return float(labels.flatten().bincount().max()) / labels.numel()


def _mean(values: Floats) -> float:
    """The mean without NaN; NaN if nothing is left."""
    told = values[~np.isnan(values)]
    return float(told.mean()) if len(told) else float("nan")
