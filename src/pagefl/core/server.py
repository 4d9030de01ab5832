"""ServerHalf: the shared state, the server's examples, and the uploads of a round. Clients are elsewhere."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import checks, rng
from .algorithm import Algorithm, Facts, State
from .arrays import Floats, Integers
from .block import adapts
from .evaluate import Scores
from .examples import Examples, ServerData
from .jobs import EVALUATED_TOGETHER, in_parts, join, pieces
from .participants import count_of, drawn
from .storage import Allocate
from .training.descent import Batch
from .training.model import Model
from .training.stack import Stack, Training
from .uploaded import Here, Regard, Regarded, Source, Treatment, Uploaded

NONE = np.empty(0, np.int64)
GRADIENT_EXAMPLES = 500  # of which a gradient is taken at once
Chances = Callable[[int, int], Floats]  # (round, clients) -> a number from 0 to 1 for each client


class Job(NamedTuple):
    # "uploads", "effects" or "lengths" of uploads, or the split on which the shared model is evaluated
    kind: str
    ids: Integers  # of clients, or of blocks of the server's examples
    round: int
    role: str = ""  # of uploads: the split on which they are evaluated, or the array that is measured

    @property
    def of_uploads(self) -> bool:
        return self.kind in ("uploads", "effects", "lengths")


class ServerHalf:
    def __init__(
        self,
        model: Model,
        algorithm: Algorithm,
        data: ServerData,
        training: Training,
        *,
        row: Tensor,
        clients: int,
        uploads: State | None = None,
        look: int = 4000,
        cuts: Integers = NONE,
        places: Callable[[Integers], Integers] | None = None,
        allocate: Allocate = torch.zeros,
    ) -> None:
        """`row`: the model at the start. `clients`: of the whole federation. `uploads`: where their uploads
        arrive, a row per client; in a simulation these are the clients' own rows. `places`: the rows of some
        clients, where not everybody has one. `look`: the most examples
        on which each upload is evaluated, because all uploads on all examples would grow with the square of
        the clients. `cuts`: clients whose uploads begin another job, see `group_size`."""
        self.model, self.algorithm, self.training, self.clients = model, algorithm, training, clients
        self.cuts = cuts
        self.treatments: tuple[Treatment, ...] = ()  # of uploads, before they are aggregated
        splits = {"game": data.game, "server_test": data.test}
        self.data = {
            role: examples.of_type(row.dtype, "server").to(model.device) for role, examples in splits.items()
        }
        for examples in self.data.values():
            model.check_examples(row, examples, "server")
        self.classes = model.logits(row[None], self.data["game"].x[None, :1].clone()).shape[-1]
        self.support = self.data["game"].of_one_owner()
        self.samples = {role: _sample(examples, look, training.seed) for role, examples in self.data.items()}
        self.run_jobs: Callable[[list[Job]], list[object]] = lambda jobs: [self.work(job) for job in jobs]
        self.shared = checks.server_state(algorithm, algorithm.server_state(row.clone()), row)
        sent = checks.sent(algorithm, algorithm.send(self.shared), row)
        self.sent = {name: allocate([1, *value.shape], dtype=value.dtype) for name, value in sent.items()}
        if uploads is None:
            shapes = algorithm.upload_state(row, model.layout)
            uploads = {
                name: allocate([clients, *value.shape], dtype=value.dtype) for name, value in shapes.items()
            }
        self.uploads = uploads
        self.source: Source = Here(uploads) if places is None else Here(uploads, places)
        # set: each client takes part or not on its own, and a round may have nobody
        self.chances: Chances | None = None
        self.slope: tuple[Tensor, Tensor] | None = None  # a shared model, and the gradient of its loss
        self._send()

    @property
    def model_row(self) -> Tensor:
        """The shared model W."""
        return self.shared["model"]

    def participants(self, round: int, share: float) -> Integers:
        if self.chances is not None:
            return np.flatnonzero(self.chances(round, self.clients) < share)
        return drawn(self.training.seed, round, self.clients, count_of(share, self.clients))

    def receive(self, ids: Integers, uploads: State) -> None:
        """Uploads that came from elsewhere, a row for each of these clients."""
        for name, rows in uploads.items():
            self.uploads[name][torch.from_numpy(ids)] = rows

    def uploads_of(self, ids: Integers) -> Uploaded:
        return Uploaded(self.source, ids)

    def candidates(self, ids: Integers) -> Tensor:
        """The models that these clients' uploads stand for, [n, columns]."""
        uploads = dict(self.uploads_of(ids))
        return checks.candidates(self.algorithm, self.sent["model"], uploads, len(ids))

    def evaluate_uploads(self, round: int, ids: Integers, role: str) -> Floats:
        """The accuracy of each of these uploads on the server's examples of one role."""
        cuts = self.source.cuts if self.model.scores_alone else self.cuts
        parts = pieces(ids, cuts, self.model.chunk)
        answers: list[Any] = self.run_jobs([Job("uploads", ids[part], round, role) for part in parts])
        return np.concatenate([*answers, np.empty(0)])

    def effects(self, round: int, ids: Integers, role: str) -> Floats:
        """How far each of these uploads has moved, and by how much it lowers the loss, to first order."""
        parts = pieces(ids, self.source.cuts, EVALUATED_TOGETHER)
        answers: list[Any] = self.run_jobs([Job("effects", ids[part], round, role) for part in parts])
        return np.concatenate([*answers, np.empty((0, 2))])

    def lengths(self, round: int, ids: Integers, name: str) -> Floats:
        """How far one array of each of these uploads is from that of an untrained upload."""
        parts = pieces(ids, self.source.cuts, EVALUATED_TOGETHER)
        answers: list[Any] = self.run_jobs([Job("lengths", ids[part], round, name) for part in parts])
        return np.concatenate([*answers, np.empty(0)])

    def aggregate(self, round: int, ids: Integers, weights: Floats, regard: Regard | None = None) -> None:
        """The next shared state, of these clients' uploads."""
        if len(ids) or self.chances is not None:
            self.shared = self.aggregated(round, ids, weights, regard)
            self._send()

    def aggregated(self, round: int, ids: Integers, weights: Floats, regard: Regard | None = None) -> State:
        """What the state would become. `regard`: how far each upload counts where weights are equal."""
        uploads, shares = self.uploads_of(ids), torch.from_numpy(weights).to(self.model_row)
        for treatment in self.treatments:
            uploads = treatment(uploads, self.origin, round)
        counted = uploads.counted(shares, len(ids) / self.clients)
        if regard is not None:
            uploads = Regarded(uploads, self.origin, regard)
        after = self.algorithm.aggregate(self.shared, uploads, *counted)
        return checks.aggregated(self.algorithm, after, self.shared)

    @property
    def origin(self) -> State:
        """What a client would upload that has not trained."""
        sent = {name: rows[0] for name, rows in self.sent.items()}
        return self.algorithm.origin(sent, self.model.layout)

    def gradient(self, row: Tensor, role: str) -> Tensor:
        """Of a model's mean loss on the sample of one role."""
        examples, gradient = self.samples[role], torch.zeros_like(row[None])
        parts = zip(*(torch.split(part, GRADIENT_EXAMPLES) for part in (examples.x, examples.y)), strict=True)
        with rng.torch_stream(self.training.seed, "slope"):  # a module with dropout draws
            for x, y in parts:
                weight = torch.full_like(y[None], 1 / len(y), dtype=row.dtype)
                part = self.model.gradient(row[None], Batch(x[None], y[None], weight))
                gradient += part * (len(y) / len(examples.y))
        return gradient[0]

    def evaluate(self, round: int, *roles: str) -> dict[str, tuple[float, float]]:
        """Loss and accuracy of the shared model on these of the server's splits."""
        jobs = [
            Job(role, part, round)
            for role in roles
            for part in in_parts(len(self.data[role]), EVALUATED_TOGETHER)
        ]
        answers = self.run_jobs(jobs)
        found = {}
        for role in roles:
            scores = join([answer for job, answer in zip(jobs, answers, strict=True) if job.kind == role])
            found[role] = pooled(scores, self.data[role])
        return found

    def work(self, job: Job) -> object:
        """What a worker does."""
        if job.kind == "effects":
            return self._effects(job)
        if job.kind == "lengths":
            return self._lengths(job)
        if job.kind == "uploads":
            return self.model.accuracies(self.candidates(job.ids), self.samples[job.role])
        rows = self.sent["model"]
        if adapts(self.algorithm):
            rows = checks.adapted(
                self.algorithm, self.algorithm.adapt(self._alone(job.round)), 1, self.model.layout.width
            )
        return self.model.score(rows, self.data[job.kind], torch.from_numpy(job.ids))

    def _effects(self, job: Job) -> Floats:
        sent = self.sent["model"][0]
        if self.slope is None or not torch.equal(self.slope[0], sent):  # once a round in each process
            self.slope = sent.clone(), self.gradient(sent, job.role)
        found = torch.empty(len(job.ids), 2, dtype=torch.float64)
        for i, row in enumerate(self.candidates(job.ids)):  # one by one: the same bits in pieces of any size
            moved = row - sent
            found[i] = torch.stack([moved.norm(), -(moved @ self.slope[1])])
        return found.numpy()

    def _lengths(self, job: Job) -> Floats:
        rows, origin = self.uploads_of(job.ids)[job.role], self.origin.get(job.role)
        # one by one: the same bits in pieces of any size
        return np.array([float((row if origin is None else row - origin).norm()) for row in rows])

    def state(self) -> State:
        """Everything that a round changes, as views."""
        return {f"server.{name}": value for name, value in self.shared.items()}

    def load(self, state: State) -> None:
        for name, value in self.state().items():
            value.copy_(state[name])
        self._send()

    def _send(self) -> None:
        for name, value in self.algorithm.send(self.shared).items():
            self.sent[name][0] = value

    def _alone(self, round: int) -> Stack:
        """The server as a client that keeps nothing: the shared model is fitted to the game half."""
        return Stack(
            model=self.model,
            examples=self.support,
            training=self.training,
            round=round,
            ids=torch.tensor([0]),
            numbers=np.zeros(1, np.int64),
            sent=self.sent,
            kept={},
            facts=Facts(
                self.support.sizes,
                self.support.y.bincount(minlength=self.classes)[None],
                float(len(self.support.y)),
            ),
            lr=torch.tensor([self.training.lr], device=self.model.device, dtype=self.model.layout.dtype),
            epochs=torch.ones(1, dtype=torch.long),
        )


def pooled(scores: Scores, examples: Examples) -> tuple[float, float]:
    """Loss and accuracy over all examples, whoever owns them."""
    sizes = examples.sizes.numpy()
    return float(scores.loss @ sizes / sizes.sum()), float(scores.accuracy @ sizes / sizes.sum())


def _sample(examples: Examples, count: int, seed: int) -> Examples:
    if len(examples.y) <= count:
        return examples
    chosen = torch.from_numpy(np.sort(rng.stream(seed, "look").choice(len(examples.y), count, replace=False)))
    return Examples(examples.x[chosen], examples.y[chosen], torch.tensor([0, count]))
