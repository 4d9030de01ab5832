"""Block: the data, kept rows and models of some clients, and the work on them.

What work there is, `ClientHalf` says. A block is in the same process, or on another machine.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from . import checks, objective, personal
from .algorithm import Algorithm, Facts, Local, State
from .arrays import Floats, Integers, finite
from .attempts import best
from .errors import UserError
from .examples import Examples
from .holdings import Holdings, class_counts
from .jobs import Attempt, Job, Played, unknown
from .personal import Step
from .storage import Allocate, Storage, named
from .training.model import Model
from .training.stack import Stack, Training

STEPPED, STEPPED_CLIENTS = "stepped", "stepped_clients"


class Block:
    def __init__(
        self,
        model: Model,
        algorithm: Algorithm,
        data: Holdings,
        training: Training,
        *,
        row: Tensor,
        steps: bool = True,
        allocate: Allocate = torch.zeros,
    ) -> None:
        """`row`: the model at the start. `steps`: whether there will be a personal step. `allocate`: makes
        the zeros that workers share."""
        if algorithm.needs_body and model.layout.body.stop == 0:
            name = type(algorithm).__name__
            raise UserError(
                f"algorithm = {name}: it needs a model with a body and a head, and this one is a single layer"
            )
        self.model, self.algorithm, self.data, self.training = model, algorithm, data, training
        self.run: Callable[[list[Job]], list[object]] = lambda jobs: [self.work(job) for job in jobs]
        someone = data.of("train", np.array([0]))[0]
        self.classes = model.logits(row[None], someone.x[None, :1].clone()).shape[-1]
        server = checks.server_state(algorithm, algorithm.server_state(row.clone()), row)
        sent = checks.sent(algorithm, algorithm.send(server), row)
        self.sent = {name: allocate([1, *value.shape], dtype=value.dtype) for name, value in sent.items()}
        self.receive(sent)
        kept = checks.client_state(algorithm, algorithm.client_state(row, model.layout))
        uploads = algorithm.upload_state(row, model.layout) if declared(algorithm) else self._rehearsed(kept)
        self.storage = Storage(algorithm, row, kept, uploads, data.room, allocate)
        # models after the personal step
        self.stepped = allocate([data.room if steps else 0, *row.shape], dtype=row.dtype)

    @property
    def numbers(self) -> Integers:
        return self.data.numbers

    @property
    def sizes(self) -> Integers:
        return self.data.sizes

    @property
    def cuts(self) -> Integers:
        return np.empty(0, np.int64)

    def gather(self, numbers: Integers) -> None:
        """These clients are needed next. All of this block's are here."""

    def settle(self, places: Integers, sizes: Integers) -> None:
        """These clients have trained. Their rows stay where they are."""

    @property
    def keeps(self) -> bool:
        """Whether clients keep anything between rounds."""
        return bool(self.storage.kept)

    def receive(self, sent: State) -> None:
        """What the server has sent."""
        for name, value in sent.items():
            self.sent[name][0] = value

    def work(self, job: Job) -> object:
        """What a worker does. It reads and writes rows in place and answers with scores."""
        with checks.nothing_written(self.algorithm, self.sent):
            return self._work(job)

    def _work(self, job: Job) -> object:
        ids = torch.from_numpy(job.ids)
        if job.kind in ("try", "take"):
            return self._try(job) if job.step is None else self._take(job, job.step)
        if job.kind != "train":
            rows = self.sent["model"]
            if adapts(self.algorithm):
                adapted = self.algorithm.adapt(self._stack(job, self.storage.kept))
                rows = checks.adapted(self.algorithm, adapted, len(ids), self.model.layout.width)
            return self.model.score(rows, *self.data.of(job.kind, job.ids))
        (outcome, added, _, evaluated), played = best(job, self._attempt)
        # an upload is often the personal model
        distinct = {id(rows): rows for rows in named(outcome).values()}.values()
        good = torch.stack([finite(rows) for rows in distinct]).all(0)
        chosen = slice(None) if bool(good.all()) else good  # a view where nobody is left out
        ids = ids[good.cpu()]
        self.storage.put(ids, chosen, outcome)
        personal = outcome.personal[chosen]
        test, train = (
            self.model.score(personal, *self.data.of(role, ids.numpy()))
            if len(ids) and role in job.roles
            else unknown(len(ids))
            for role in ("test", "reward")
        )
        upload, uploaded = test if job.uploads == "test" else train, objective.uploaded(outcome)
        if job.uploads and len(ids) and uploaded is not outcome.personal:
            upload = self.model.score(uploaded[chosen], *self.data.of(job.uploads, ids.numpy()))
        flags = good.cpu().numpy()
        kept = Played._make(values[flags] for values in played)
        return flags, test, train, upload, added[flags], kept, evaluated, self._sizes(job.ids)

    def _attempt(self, job: Job) -> Attempt:
        stack = self._stack(job, self.storage.kept)
        outcome = self._local(stack)
        added = total = np.full(len(job.ids), np.nan)
        if job.uploads:
            added = self._added(stack, outcome)
        if job.uploads and (job.limits is not None or job.rivals is not None):
            total = self._uploaded_loss(job, outcome, job.uploads) + added
        return Attempt(outcome, added, total, stack.evaluated)

    def _local(self, stack: Stack) -> Local:
        outcome = self.algorithm.local(stack)
        checks.local(
            self.algorithm,
            outcome,
            len(stack.ids),
            self.model.layout.width,
            self.storage.kept,
            self.storage.uploads,
        )
        return outcome

    def _added(self, stack: Stack, outcome: Local) -> Floats:
        return objective.added(stack, objective.uploaded(outcome))

    def _uploaded_loss(self, job: Job, outcome: Local, role: str) -> Floats:
        """NaN for who diverged."""
        rows = objective.uploaded(outcome)
        loss = self.model.score(rows, *self.data.of(role, job.ids)).loss
        return np.where(np.isfinite(loss), loss, np.nan)

    def _try(self, job: Job) -> tuple[Floats, int]:
        holds_out = self.data.holds_out
        if holds_out:
            fit, hold = self._own("train", job.ids), self._own("reward", job.ids)
        else:
            examples, places = self.data.of("train", job.ids)
            fit, hold = personal.cut(examples, places, self.numbers[job.ids], self.training.seed)
        stack = self._stack(job, self.storage.kept, fit)
        losses = personal.losses(stack, hold, self.algorithm, holds_out or not self.storage.kept)
        if not holds_out:
            losses[self._sizes(job.ids) < 2] = np.nan  # nothing could be held out
        return losses, stack.gradients

    def _take(self, job: Job, step: Step) -> tuple[Floats, int]:
        stack = self._stack(job, self.storage.kept, self._own("train", job.ids))
        # As long a way as on the part that it was chosen on.
        lr = step.lr if self.data.holds_out else step.lr * (1 - personal.HOLDOUT)
        rows = personal.taken(stack, self.algorithm, step._replace(lr=lr))
        ids = torch.from_numpy(job.ids)
        self.stepped[ids] = rows
        return self.model.score(rows, *self.data.of("test", job.ids)).accuracy, stack.gradients

    def keep(self, job: Job) -> Callable[[], None]:
        """Keep what a job reads and overwrites until it is done; what is returned puts it back."""
        ids = torch.from_numpy(job.ids)
        kept = {name: rows[ids] for name, rows in self.storage.kept.items()} if job.kind == "train" else {}

        def put_back() -> None:
            for name, rows in kept.items():
                self.storage.kept[name][ids] = rows

        return put_back

    def state(self, stepped: bool) -> State:
        """Everything that a round changes, as views. `stepped`: whether a personal step was taken last."""
        homes = {"kept": self.storage.kept, "clients": {"personal": self.storage.personal}}
        if stepped:
            homes["clients"][STEPPED] = self.stepped
        return {f"{home}.{name}": value for home, state in homes.items() for name, value in state.items()}

    def load(self, state: State) -> None:
        for name, value in self.state(f"clients.{STEPPED}" in state).items():
            value.copy_(state[name])

    def _rehearsed(self, kept: State) -> State:
        """What an undeclared algorithm uploads: one client trains for one epoch, and nothing is kept."""
        rows = {name: value[None] for name, value in kept.items()}
        lr, epochs = np.array([self.training.lr]), np.array([1])
        alone = Job("train", np.array([0]), 0, lr, epochs, float(self._sizes(np.array([0]))[0]))
        with checks.nothing_written(self.algorithm, self.sent):
            made = self.algorithm.local(self._stack(alone, rows))
        checks.local(self.algorithm, made, 1, self.model.layout.width, rows)
        return {name: rows[0] for name, rows in made.upload.items()}

    def _stack(self, job: Job, kept: State, own: Examples | None = None) -> Stack:
        """`own`: for a personal step, the examples of the job's clients alone, whose places have no gap."""
        ids = torch.from_numpy(job.ids)
        examples, places = self.data.of("train", job.ids) if own is None else (own, torch.arange(len(ids)))
        counts = (
            self.data.class_counts(job.ids, self.classes) if own is None else class_counts(own, self.classes)
        )
        numbers = np.zeros(len(examples), np.int64)
        numbers[places.numpy()] = self.numbers[job.ids]
        return Stack(
            model=self.model,
            examples=examples,
            training=self.training,
            round=job.round,
            ids=places,
            numbers=numbers,
            sent={name: value.expand(len(ids), *value.shape[1:]) for name, value in self.sent.items()},
            kept={name: value[ids] for name, value in kept.items()},
            facts=Facts(examples.sizes[places], counts, job.mean_size or examples.sizes[places]),
            lr=torch.from_numpy(job.lr).to(self.model.device, self.model.layout.dtype),
            epochs=torch.from_numpy(job.epochs),
            purpose="" if own is None else f"personal {job.kind} ",
        )

    def _own(self, role: str, ids: Integers) -> Examples:
        """The examples of these clients alone."""
        examples, places = self.data.of(role, ids)
        return examples.of_some(places.numpy())

    def _sizes(self, ids: Integers) -> Integers:
        examples, places = self.data.of("train", ids)
        found: Integers = examples.sizes[places].numpy()
        return found


def declared(algorithm: Algorithm) -> bool:
    """Whether an algorithm says what it uploads; otherwise one has to try."""
    kind = type(algorithm)
    unchanged = kind.upload_state is Algorithm.upload_state and kind.same_rows is None
    return not unchanged or kind.local is Algorithm.local


def adapts(algorithm: Algorithm) -> bool:
    """Whether the shared model is fitted to each client before it is evaluated."""
    return type(algorithm).adapt is not Algorithm.adapt
