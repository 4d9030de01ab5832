"""The loop: one federation, one algorithm, round after round, from the start or from a checkpoint."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from pagefl.core import linear, rng
from pagefl.core.algorithm import Algorithm
from pagefl.core.engine import Training
from pagefl.core.errors import UserError
from pagefl.core.federation import Federation, Trained, pooled
from pagefl.core.layout import Layout
from pagefl.game import rules

from . import checkpoint, paths, record
from .directory import RunDirectory
from .settings import Settings
from .task import Task
from .workers import CAN_FORK, Workers, one_thread, shared_zeros

Say = Callable[[str], None]
Observe = Callable[[record.Record], None]


class NobodyLeft(UserError):
    """Every client of a round was quarantined: the round did not happen."""


@dataclass
class Run:
    """A run, finished or under way, as its user sees it."""

    rounds: list[record.Record]
    client_rounds: list[record.Record]
    state: dict[str, Tensor]
    make_module: Callable[[], nn.Module]
    directory: Path | None = None

    @property
    def history(self) -> pd.DataFrame:
        """One row per round."""
        return record.history(self.rounds)

    @property
    def clients(self) -> pd.DataFrame:
        """One row per round and client."""
        return record.by_client(self.client_rounds)

    @property
    def model(self) -> nn.Module:
        """The shared model W."""
        return self._module(self.state["server.model"])

    def personal(self, client: int) -> nn.Module:
        """A client's own model."""
        return self._module(self.state["clients.personal"][client])

    def _module(self, row: Tensor) -> nn.Module:
        module = self.make_module()
        return Layout(module).fill(module, row).eval()


def play(
    task: Task,
    algorithm: Algorithm,
    settings: Settings,
    directory: RunDirectory | None = None,
    observe: Observe = lambda record: None,
    say: Say = lambda message: None,
) -> Run:
    """Run to the last round; where the directory holds a checkpoint, from there."""
    with _numeric_mode(), ExitStack() as opened:
        federation = _federation(task, algorithm, settings, say)
        if directory:
            opened.enter_context(directory.open())
        progress = _Progress(federation, settings)
        sizes = progress.restore(directory, say) if directory else None
        records = record.Records(directory.path if directory else None, sizes)

        def save() -> None:
            if directory:
                facts = {"round": progress.round, "payoffs": progress.payoffs, "sizes": records.sync()}
                checkpoint.save(directory.path, progress.state(), facts)

        with _workers(federation, settings), _polite_stop() as stopped:
            try:
                saved = monotonic()
                while progress.round < settings.rounds and not stopped.is_set():
                    entry, clients = progress.play_round()
                    every = settings.clients_every
                    records.write(entry, clients if every and progress.round % every == 0 else None)
                    last = progress.round == settings.rounds or stopped.is_set()
                    if last or monotonic() - saved >= settings.checkpoint_seconds:
                        save()
                        saved = monotonic()
                    observe(entry)
            except NobodyLeft:
                save()
                raise
            finally:
                records.close()
    state = {name: tensor.clone() for name, tensor in federation.state().items()}
    return Run(
        records.rounds, records.clients, state, lambda: task.fresh_module(settings.seed), directory.path if directory else None
    )


class _Progress:
    """What a resume needs beside the federation's own state: the round, the pay-offs, the last scores of every client."""

    def __init__(self, federation: Federation, settings: Settings) -> None:
        self.federation, self.settings = federation, settings
        self.round = 0
        self.payoffs = {"server": 0.0, "clients": 0.0}
        first = federation.judge(0, "test", "reward")  # a client that has not trained yet is judged by the first model
        self.scores = {
            "test_loss": first["test"].loss,
            "test_accuracy": first["test"].accuracy,
            "train_loss": first["reward"].loss,
        }

    def play_round(self) -> tuple[record.Record, record.Record]:
        started = perf_counter()
        federation, settings = self.federation, self.settings
        self.round += 1
        ids = federation.participants(self.round, settings.participation)
        lr, epochs = np.full(len(ids), settings.lr), np.full(len(ids), settings.epochs)
        trained = federation.train(self.round, ids, lr, epochs)
        self._check(trained)
        sizes = federation.data["train"].sizes.numpy()[trained.ids]
        federation.aggregate(trained.ids, sizes / sizes.sum())
        judged = federation.judge(self.round, "server_test", "game")
        loss, accuracy = pooled(judged["server_test"], federation.data["server_test"])
        game_loss, _ = pooled(judged["game"], federation.data["game"])
        rewards = rules.reward(trained.train.loss, settings.reward_penalty)
        reward_server = float(rules.reward(game_loss, settings.reward_penalty))
        discount = rules.GAMMA**self.round
        self.payoffs["server"] += discount * reward_server
        self.payoffs["clients"] += discount * float(rewards.mean())
        self._remember(trained)
        local = self.scores["test_accuracy"]
        worst = np.sort(local)[: max(1, len(local) // 10)]
        entry = {
            "round": self.round,
            "global_accuracy": accuracy,
            "global_loss": record.finite(loss),
            "local_accuracy": float(local.mean()),
            "local_accuracy_before": float(trained.before.accuracy.mean()),
            "local_loss": record.finite(self.scores["test_loss"].mean()),
            "local_std": float(local.std()),
            "local_worst10": float(worst.mean()),
            "train_loss": record.finite(self.scores["train_loss"].mean()),
            "participants": len(trained.ids),
            "quarantined": len(trained.quarantined),
            "mean_lr": float(lr.mean()),
            "mean_epochs": float(epochs.mean()),
            "reward_server": record.finite(reward_server),
            "reward_clients": record.finite(rewards.mean()),
            "payoffs": {who: record.finite(value) for who, value in self.payoffs.items()},
            "seconds": perf_counter() - started,
        }
        clients = {
            "round": self.round,
            "local_accuracy": local.tolist(),
            "local_accuracy_before": trained.before.accuracy.tolist(),
            "train_loss": [record.finite(value) for value in self.scores["train_loss"]],
            "trained": np.isin(np.arange(federation.size), trained.ids).tolist(),
        }
        return entry, clients

    def state(self) -> dict[str, Tensor]:
        scores = {f"scores.{name}": torch.from_numpy(values) for name, values in self.scores.items()}
        return {**self.federation.state(), **scores}

    def restore(self, directory: RunDirectory, say: Say) -> dict[str, int]:
        found, messages = directory.checkpoint()
        for message in messages:
            say(message)
        if found is None:
            return {}
        tensors, facts = found
        shapes = {name: tensor.shape for name, tensor in self.state().items()}
        if {name: tensor.shape for name, tensor in tensors.items()} != shapes:
            raise UserError(
                f"{directory.path}: the checkpoint is of another model, task or algorithm than its spec.toml; restore the spec"
            )
        self.federation.load(tensors)
        self.scores = {name: tensors[f"scores.{name}"].numpy().copy() for name in self.scores}
        self.round, self.payoffs = facts["round"], facts["payoffs"]
        sizes: dict[str, int] = facts["sizes"]
        return sizes

    def _check(self, trained: Trained) -> None:
        bad, lr = trained.quarantined.tolist(), self.settings.lr
        if not bad or (len(trained.ids) and self.settings.on_bad_upload != "stop"):
            return
        who = (
            f"client {bad[0]}"
            if len(bad) == 1
            else f"{len(bad)} clients ({', '.join(map(str, bad[:5]))}{', …' * (len(bad) > 5)})"
        )
        sentence = f"round {self.round}: {who} uploaded values that are not finite; a smaller lr than {lr} may help"
        if len(trained.ids):
            raise UserError(sentence)
        self.round -= 1
        raise NobodyLeft(sentence)

    def _remember(self, trained: Trained) -> None:
        self.scores["test_loss"][trained.ids] = trained.test.loss
        self.scores["test_accuracy"][trained.ids] = trained.test.accuracy
        self.scores["train_loss"][trained.ids] = trained.train.loss


def worker_count(settings: Settings) -> int:
    if settings.device != "cpu" or not CAN_FORK:
        return 1
    return settings.workers or len(os.sched_getaffinity(0))


def _federation(task: Task, algorithm: Algorithm, settings: Settings, say: Say) -> Federation:
    data = task.data.hold_out(settings.holdout, settings.seed) if settings.holdout else task.data
    module = task.fresh_module(settings.seed)
    labels = 1 + max(int(part.y.max()) for part in (data.train, data.test, data.game, data.server_test))
    try:
        with rng.torch_stream(settings.seed, "measuring"):
            model = paths.build(module, data.train.x[: settings.batch_size], labels, settings.path, settings.device)
    except RuntimeError as error:  # torch's own words about a device it does not have
        raise UserError(f"device = {settings.device}: {error}; valid is cpu, or a device that torch can use here") from error
    if not linear.compiled():
        say("compiling the kernels (once; kept in numba's cache) …")
    return Federation(
        model,
        algorithm,
        data,
        Training(settings.seed, settings.lr, settings.batch_size, settings.weight_decay, settings.clip),
        row=model.layout.row(module),
        chunk=settings.chunk or None,
        allocate=shared_zeros if worker_count(settings) > 1 else lambda shape, dtype: torch.zeros(*shape, dtype=dtype),
    )


@contextmanager
def _workers(federation: Federation, settings: Settings) -> Iterator[None]:
    count = worker_count(settings)
    if count == 1:
        yield
        return
    workers = Workers(count, federation.work)
    federation.run_jobs = workers.run
    try:
        yield
    finally:
        workers.close()


@contextmanager
def _numeric_mode() -> Iterator[None]:
    threads = torch.get_num_threads()
    one_thread()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)


@contextmanager
def _polite_stop() -> Iterator[threading.Event]:
    """The first Ctrl-C (or TERM) ends the run after its round, with a checkpoint; the second ends it at once."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def ask(number: int, frame: object) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    kept = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
