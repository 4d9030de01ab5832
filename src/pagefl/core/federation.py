"""A federation is a matrix and a client is a row: all state of one algorithm's run, and what a round does to it."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from . import checks, rng
from .algorithm import Algorithm, Facts, State
from .descent import Batch
from .engine import Stack, Training
from .errors import UserError
from .evaluate import Scores
from .examples import Examples, Splits
from .model import Model

Floats = npt.NDArray[np.float64]


SERVER_ROLES = ("game", "server_test")
NONE = Scores(np.empty(0), np.empty(0))
JUDGED_TOGETHER = 50  # owners of examples that one job judges
LOOKED_AT_TOGETHER = 500  # examples whose gradient the server takes at once


class Job(NamedTuple):
    """A piece of a round's work that any worker may do. Pieces never depend on how many workers there are."""

    kind: str  # "train", or the split on which the sent model is judged
    ids: npt.NDArray[np.int64]
    round: int
    lr: Floats
    epochs: npt.NDArray[np.int64]
    candidates_on: str | None = None
    uploads_too: bool = False


class Trained(NamedTuple):
    """What is known of the clients that trained, in the order of their ids."""

    ids: npt.NDArray[np.int64]
    quarantined: npt.NDArray[np.int64]  # those whose result was not finite: as if they had not taken part
    test: Scores  # personal models on their own test data
    train: Scores  # personal models on what the game may see: the hold-out where there is one, or the training data
    given: Scores  # what they upload, on the same, where somebody asked: for most rules it is the personal model
    before: Scores  # the sent model on the test data of *all* clients
    candidates: Floats | None  # the uploaded models' accuracy on one of the server's halves


class Federation:
    def __init__(
        self,
        model: Model,
        algorithm: Algorithm,
        data: Splits,
        training: Training,
        *,
        row: Tensor,
        chunk: int | None = None,
        look: int = 4000,
        allocate: Callable[..., Tensor] = torch.zeros,
        mean_size: float | None = None,
    ) -> None:
        """`row`: the model at the start. `look`: on how many examples at most the server looks at each upload: all uploads
        on all examples would grow with the square of N. `allocate`: makes the zeros that workers share. `mean_size`: of all
        clients' data, where these are not all."""
        if algorithm.needs_body and model.layout.body.stop == 0:
            name = type(algorithm).__name__
            raise UserError(f"algorithm = {name}: it needs a model with a body and a head, and this one is a single layer")
        self.model, self.algorithm, self.training = model, algorithm, training
        self.data = {
            "train": data.train,
            "test": data.test,
            "reward": data.holdout or data.train,
            "game": data.game,
            "server_test": data.server_test,
        }
        self.data = {role: examples.to(model.device) for role, examples in self.data.items()}
        game = self.data["game"]
        self.server_support = Examples(game.x, game.y, torch.tensor([0, len(game.y)]))
        self.looks = {role: _sample(self.data[role], look, training.seed) for role in SERVER_ROLES}
        self.size = len(data.train)
        self.mean_size = mean_size or float(data.train.sizes.double().mean())
        self.chunk = chunk or model.chunk
        self.run_jobs: Callable[[list[Job]], list[object]] = lambda jobs: [self.work(job) for job in jobs]
        classes = model.logits(row[None], self.data["train"].x[None, :1]).shape[-1]
        data.check_labels(classes)
        self.class_counts = torch.stack([data.train.client(i)[1].bincount(minlength=classes) for i in range(self.size)])

        def rows_like(state: State, count: int) -> State:
            return {name: allocate([count, *value.shape], dtype=value.dtype) for name, value in state.items()}

        self.server = checks.server_state(algorithm, algorithm.server_state(row.clone()), row)
        self.sent = rows_like(checks.sent(algorithm, algorithm.send(self.server), row), 1)
        first_kept = checks.client_state(algorithm, algorithm.client_state(row, model.layout))
        self.kept = rows_like(first_kept, self.size)
        for name, value in first_kept.items():
            self.kept[name][:] = value
        self._send()
        # A rehearsal without a step tells what this algorithm uploads, and what of it is the same as what a client keeps or
        # is judged by: a hundred large models are held once.
        stack = self._stack(Job("train", np.array([0]), 0, np.ones(1), np.zeros(1, np.int64)))
        rehearsal = checks.local(algorithm, algorithm.local(stack), 1, len(row), self.kept)
        homes = {id(value): self.kept[name] for name, value in rehearsal.kept.items()}
        for value in (*rehearsal.upload.values(), rehearsal.personal):
            if id(value) not in homes:
                homes[id(value)] = allocate([self.size, *value.shape[1:]], dtype=value.dtype)
        self.uploads = {name: homes[id(value)] for name, value in rehearsal.upload.items()}
        self.personal = homes[id(rehearsal.personal)]
        if all(self.personal is not value for value in self.kept.values()):
            self.personal[:] = row

    def work(self, job: Job) -> object:
        """What a worker does. It reads and writes rows in place and answers with scores."""
        if job.kind != "train":
            return self.model.score(self._judged_rows(job), self.data[job.kind], torch.from_numpy(job.ids))
        outcome = self.algorithm.local(self._stack(job))
        checks.local(self.algorithm, outcome, len(job.ids), self.model.layout.width, self.kept, self.uploads)
        made = [(self.personal, outcome.personal)]
        made += [(self.uploads[name], rows) for name, rows in outcome.upload.items()]
        made += [(self.kept[name], rows) for name, rows in outcome.kept.items()]
        distinct = {id(rows): rows for _, rows in made}.values()  # an upload is often the personal model itself
        good = torch.stack([_finite(rows) for rows in distinct]).all(0)
        chosen = slice(None) if bool(good.all()) else good  # a view where nobody is left out
        ids = torch.from_numpy(job.ids)[good.cpu()]
        written: dict[int, Tensor] = {}
        for home, rows in made:
            earlier = written.setdefault(id(home), rows)
            if earlier is not rows and not torch.equal(earlier[chosen], rows[chosen]):
                checks.one_became_two(self.algorithm)
            if earlier is rows:
                home[ids] = rows[chosen]
        personal = outcome.personal[chosen]
        test, train = (self.model.score(personal, self.data[role], ids) if len(ids) else NONE for role in ("test", "reward"))
        given = train
        if job.uploads_too and len(ids) and outcome.upload.get("model", outcome.personal) is not outcome.personal:
            given = self.model.score(outcome.upload["model"][chosen], self.data["reward"], ids)
        looks = self.look(outcome.upload, good, job.candidates_on) if job.candidates_on else None
        return good.cpu().numpy(), test, train, given, looks

    def keep(self, job: Job) -> Callable[[], None]:
        """What a piece of work reads and overwrites is kept, until it is done; the answer puts it back."""
        ids = torch.from_numpy(job.ids)
        kept = {name: rows[ids] for name, rows in self.kept.items()} if job.kind == "train" else {}

        def put_back() -> None:
            for name, rows in kept.items():
                self.kept[name][ids] = rows

        return put_back

    def look(self, upload: State, good: Tensor, role: str) -> Floats:
        """The accuracy of each upload, as the server can judge it, on all of the server's examples of one role."""
        chosen = {name: value[good] for name, value in upload.items()}
        rows = checks.candidates(self.algorithm, self.sent["model"], chosen, int(good.sum()))
        return self.model.accuracies(rows, self.looks[role])

    def train(
        self,
        round: int,
        ids: npt.NDArray[np.int64],
        lr: Floats,
        epochs: npt.NDArray[np.int64],
        candidates_on: str | None = None,
        uploads_too: bool = False,
    ) -> Trained:
        """Clients lead: each trains what the server sends, with its own lr and epochs.

        `candidates_on`: the server's half on which it looks at every upload before it follows. `uploads_too`: clients judge
        not only their personal model but also what they upload.
        """
        sizes = self.data["train"].sizes.numpy()[ids]
        order = np.argsort(-epochs * -(-sizes // self.training.batch_size), kind="stable")
        pieces = [order[i : i + self.chunk] for i in range(0, len(order), self.chunk)]
        jobs = [Job("train", ids[p], round, lr[p], epochs[p], candidates_on, uploads_too) for p in pieces]
        answers: list[Any] = self.run_jobs(jobs + self._judging("test", round))
        flags, tests, trains, given, looks = zip(*answers[: len(jobs)], strict=True)
        good = np.concatenate(flags)
        trained = ids[order][good]
        back = np.argsort(trained)
        quarantined = np.sort(ids[order][~good])
        candidates = np.concatenate(looks)[back] if candidates_on else None
        before = _join(answers[len(jobs) :])
        test, train, uploaded = (_join(found, back) for found in (tests, trains, given))
        return Trained(trained[back], quarantined, test, train, uploaded, before, candidates)

    def aggregate(self, ids: npt.NDArray[np.int64], weights: Floats) -> None:
        """The server follows: it sees uploads and nothing else."""
        if not len(ids):
            return
        self.server = self.aggregated(ids, weights)
        self._send()

    def aggregated(self, ids: npt.NDArray[np.int64], weights: Floats) -> State:
        """What the server's state would become."""
        share = torch.from_numpy(weights).to(self.personal)
        after = self.algorithm.aggregate(self.server, self.uploads_of(ids), share, len(ids) / self.size)
        return checks.aggregated(self.algorithm, after, self.server)

    def uploads_of(self, ids: npt.NDArray[np.int64]) -> State:
        everybody = len(ids) == self.size
        return {name: rows if everybody else rows[torch.from_numpy(ids)] for name, rows in self.uploads.items()}

    def judge(self, round: int, *roles: str) -> dict[str, Scores]:
        """The shared model on these splits, an entry per owner (a client, or a block of the server's examples)."""
        jobs = [job for role in roles for job in self._judging(role, round)]
        answers = self.run_jobs(jobs)
        return {role: _join([a for job, a in zip(jobs, answers, strict=True) if job.kind == role]) for role in roles}

    def state(self) -> State:
        """Everything that a round changes, as views: copy what must outlive the next round."""
        homes = {"server": self.server, "kept": self.kept, "clients": {"personal": self.personal}}
        return {f"{home}.{name}": value for home, state in homes.items() for name, value in state.items()}

    def load(self, state: State) -> None:
        for name, value in self.state().items():
            value.copy_(state[name])
        self._send()

    def receive(self, sent: State) -> None:
        """Where the server is elsewhere: what it has sent."""
        for name, value in sent.items():
            self.sent[name][0] = value

    def participants(self, round: int, share: float) -> npt.NDArray[np.int64]:
        count = max(1, int(share * self.size + 0.5))
        drawn = rng.stream(self.training.seed, "participants", round).choice(self.size, count, replace=False)
        return np.sort(drawn)

    def _send(self) -> None:
        self.receive(self.algorithm.send(self.server))

    def _stack(self, job: Job, train: Examples | None = None) -> Stack:
        ids = torch.from_numpy(job.ids)
        device = self.model.device
        own = self.data["train"]
        if train is None:
            kept, counts = {name: value[ids] for name, value in self.kept.items()}, self.class_counts[ids]
        else:  # the server, which keeps nothing, with data of its own
            kept, counts = {}, train.y.bincount(minlength=self.class_counts.shape[1])[None]
        train = train or own
        return Stack(
            model=self.model,
            examples=train,
            training=self.training,
            round=job.round,
            ids=ids,
            sent={name: value.expand(len(ids), *value.shape[1:]) for name, value in self.sent.items()},
            kept=kept,
            facts=Facts(train.sizes[ids], counts, self.mean_size),
            lr=torch.from_numpy(job.lr).to(device, self.model.layout.dtype),
            epochs=torch.from_numpy(job.epochs),
        )

    def _judging(self, role: str, round: int) -> list[Job]:
        owners = np.arange(len(self.data[role]))
        together = self.chunk if self._adapts and role not in SERVER_ROLES else JUDGED_TOGETHER
        parts = [owners[i : i + together] for i in range(0, len(owners), together)]
        return [Job(role, part, round, np.full(len(part), self.training.lr), np.ones(len(part), np.int64)) for part in parts]

    @property
    def _adapts(self) -> bool:
        return type(self.algorithm).adapt is not Algorithm.adapt

    def _judged_rows(self, job: Job) -> Tensor:
        """The shared model is one row for all, unless the algorithm fits it to whoever it is judged for."""
        if not self._adapts:
            return self.sent["model"]
        width = self.model.layout.width
        if job.kind in SERVER_ROLES:  # fitted to the half that may be looked at, never to the other
            alone = job._replace(ids=np.array([0]), lr=job.lr[:1], epochs=job.epochs[:1])
            return checks.adapted(self.algorithm, self.algorithm.adapt(self._stack(alone, self.server_support)), 1, width)
        return checks.adapted(self.algorithm, self.algorithm.adapt(self._stack(job)), len(job.ids), width)


class Uploads:
    """What a server can find out about a round's uploads before it weighs them, on one of its two halves."""

    def __init__(self, federation: Federation, trained: Trained, role: str) -> None:
        assert trained.candidates is not None
        self.federation, self.ids, self.examples = federation, trained.ids, federation.looks[role]
        self.accuracy = trained.candidates

    @cached_property
    def rows(self) -> Tensor:
        """The models that they stand for."""
        uploads = self.federation.uploads_of(self.ids)
        return checks.candidates(self.federation.algorithm, self.federation.sent["model"], uploads, len(self.ids))

    def moves(self) -> tuple[Floats, Floats]:
        """How far each has moved, and how far that agrees (its cosine) with the mean of all moves."""
        sent = self.federation.sent["model"]
        mean = self.rows.mean(0) - sent[0]
        norm, along = torch.empty(2, len(self.ids), dtype=torch.float64)
        for i, row in enumerate(self.rows):  # one by one: a hundred large models are not held twice
            norm[i], along[i] = (row - sent[0]).norm(), (row - sent[0]) @ mean
        return norm.numpy(), (along / (norm * mean.double().norm()).clamp(min=1e-12)).numpy()

    def slope(self, weights: Floats) -> Floats:
        """How much the shared model's loss would rise with each one's weight, were they weighed like this."""
        model = self.federation.aggregated(self.ids, weights)["model"][None]
        gradient = torch.zeros_like(model)
        parts = zip(*(torch.split(part, LOOKED_AT_TOGETHER) for part in (self.examples.x, self.examples.y)), strict=True)
        with rng.torch_stream(self.federation.training.seed, "slope"):  # a module with dropout draws
            for x, y in parts:
                weight = torch.full_like(y[None], 1 / len(y), dtype=model.dtype)
                part = self.federation.model.gradient(model, Batch(x[None], y[None], weight))
                gradient += part * (len(y) / len(self.examples.y))
        return (self.rows @ gradient[0]).double().numpy()


def _sample(examples: Examples, count: int, seed: int) -> Examples:
    if len(examples.y) <= count:
        return examples
    chosen = torch.from_numpy(np.sort(rng.stream(seed, "look").choice(len(examples.y), count, replace=False)))
    return Examples(examples.x[chosen], examples.y[chosen], torch.tensor([0, count]))


def pooled(scores: Scores, examples: Examples) -> tuple[float, float]:
    """Loss and accuracy over all examples, whoever owns them."""
    sizes = examples.sizes.numpy()
    return float(scores.loss @ sizes / sizes.sum()), float(scores.accuracy @ sizes / sizes.sum())


def _finite(rows: Tensor) -> Tensor:
    """[n]. A finite sum has finite parts, and takes one pass; only where there is none must one look closer."""
    finite = rows.sum(1).isfinite()
    return finite if bool(finite.all()) else rows.isfinite().all(1)


def _join(parts: Sequence[object], order: npt.NDArray[np.int64] | None = None) -> Scores:
    loss, accuracy = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Scores(loss, accuracy) if order is None else Scores(loss[order], accuracy[order])
