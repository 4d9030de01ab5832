"""ClientHalf: a block of clients.

Their data, kept rows and personal models are here; the server is elsewhere.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import checks, objective, personal
from .algorithm import Algorithm, Facts, Local, State
from .arrays import Floats, Integers, finite
from .errors import UserError
from .evaluate import Scores
from .examples import ClientData, Examples
from .jobs import EVALUATED_TOGETHER, Attempt, Job, Played, Rivals, Trained, in_parts, join, unknown
from .personal import Step, Trials, Tuned
from .storage import Allocate, Storage, named
from .training.model import Model
from .training.stack import Stack, Training

TRIES = 3  # of a client above its limit: each with a tenth of the learning rate
DIVERGED = 1e9  # stands for the objective of a model that is not finite
STEPPED = "stepped"


class ClientHalf:
    def __init__(
        self,
        model: Model,
        algorithm: Algorithm,
        data: ClientData,
        training: Training,
        *,
        row: Tensor,
        chunk: int | None = None,
        first: int = 0,
        steps: bool = True,
        allocate: Allocate = torch.zeros,
    ) -> None:
        """`row`: the model at the start. `chunk`: rows trained together. `first`: the number of the block's
        first client. `steps`: whether there will be a personal step. `allocate`: makes the zeros that workers
        share."""
        if algorithm.needs_body and model.layout.body.stop == 0:
            name = type(algorithm).__name__
            raise UserError(
                f"algorithm = {name}: it needs a model with a body and a head, and this one is a single layer"
            )
        self.model, self.algorithm, self.training, self.first = model, algorithm, training, first
        self.data = {
            "train": self._checked(data.train, "train", row),
            "test": self._checked(data.test, "test", row),
        }
        self.data["reward"] = (
            self._checked(data.holdout, "holdout", row) if data.holdout else self.data["train"]
        )
        self.holds_out = data.holdout is not None
        self.size = len(data.train)
        self.sizes: Integers = data.train.sizes.numpy()
        # of the whole federation, as far as this block knows
        self.mean_size = float(data.train.sizes.double().mean())
        self.chunk = chunk or model.chunk
        self.run_jobs: Callable[[list[Job]], list[object]] = lambda jobs: [self.work(job) for job in jobs]
        classes = model.logits(row[None], self.data["train"].x[None, :1].clone()).shape[-1]
        self.class_counts = class_counts(data.train, classes)
        server = checks.server_state(algorithm, algorithm.server_state(row.clone()), row)
        sent = checks.sent(algorithm, algorithm.send(server), row)
        self.sent = {name: allocate([1, *value.shape], dtype=value.dtype) for name, value in sent.items()}
        self.receive(sent)
        kept = checks.client_state(algorithm, algorithm.client_state(row, model.layout))
        uploads = algorithm.upload_state(row, model.layout) if declared(algorithm) else self._rehearsed(kept)
        self.storage = Storage(algorithm, row, kept, uploads, self.size, allocate)
        # models after the personal step
        self.stepped = allocate([self.size if steps else 0, *row.shape], dtype=row.dtype)
        self.has_stepped = False

    def receive(self, sent: State) -> None:
        """What the server has sent."""
        for name, value in sent.items():
            self.sent[name][0] = value

    def train(
        self,
        round: int,
        ids: Integers,
        lr: Floats,
        epochs: Integers,
        *,
        roles: tuple[str, ...] = ("test", "reward"),
        before: Integers | None = None,
        uploads: str | None = None,
        limits: Floats | None = None,
        rivals: Rivals | None = None,
    ) -> Trained:
        """Each of these clients trains the model it was sent, with its own lr and epochs.

        `roles`: the splits on which personal models are evaluated. `before`: the clients on whose test data
        the shared model is; everybody if it is None. `uploads`: the split on which uploads are evaluated.
        `limits`: a client whose upload has a larger objective there (its loss, and what the algorithm adds)
        trains again with a tenth of the learning rate, as long as that lowers it. `rivals`: what each client
        tries beside its lr and epochs. Both need `uploads`.
        """
        self.has_stepped = False
        before = np.arange(self.size) if before is None else before
        sizes = self.sizes[ids]
        order = np.argsort(-epochs * -(-sizes // self.training.batch_size), kind="stable")
        pieces = [order[part] for part in in_parts(len(order), self.chunk)]
        jobs = [
            Job(
                *("train", ids[p], round, lr[p], epochs[p], self.mean_size, roles, uploads),
                limits=None if limits is None else limits[p],
                rivals=None if rivals is None else Rivals(rivals.lr[p], rivals.epochs[p]),
            )
            for p in pieces
        ]
        evaluations = self._evaluations("test", round, before)
        if adapts(self.algorithm) and self.storage.kept:  # training overwrites what `adapt` reads
            judged = self.run_jobs(evaluations)
            answers: list[Any] = self.run_jobs(jobs)
        else:
            answers = self.run_jobs(jobs + evaluations)
            judged = answers[len(jobs) :]
        flags, tests, trains, uploaded, changes, plays, gradients = zip(*answers[: len(jobs)], strict=True)
        good = np.concatenate(flags)
        trained = ids[order][good]
        back = np.argsort(trained)
        test, train, upload = (join(found, back) for found in (tests, trains, uploaded))
        added = np.concatenate(changes)[back]
        played = Played._make(np.concatenate(parts)[back] for parts in zip(*plays, strict=True))
        shared = unknown(self.size)
        for known, found in zip(shared, join([unknown(0), *judged]), strict=True):
            known[before] = found
        bad = np.sort(ids[order][~good])
        return Trained(trained[back], bad, test, train, upload, added, played, shared, sum(gradients))

    def try_steps(self, round: int, lr: float, epochs: int) -> Trials:
        """Every choice of a personal step around this lr and these epochs, on each client's hold-out."""
        answers: list[Any] = self.run_jobs(self._personal("try", round, lr, epochs))
        losses, gradients = zip(*answers, strict=True)
        return Trials(np.concatenate(losses), sum(gradients))

    def take_step(self, round: int, lr: float, epochs: int, step: Step) -> Tuned:
        """The personal step on all training data. The models that training works with stay as they are."""
        answers: list[Any] = self.run_jobs(self._personal("take", round, lr, epochs, step))
        accuracies, gradients = zip(*answers, strict=True)
        self.has_stepped = True
        return Tuned(np.concatenate(accuracies), sum(gradients))

    def evaluate(self, round: int, *roles: str, ids: Integers | None = None) -> dict[str, Scores]:
        """The shared model on these splits of every client, or of those that are named."""
        ids = np.arange(self.size) if ids is None else ids
        jobs = [job for role in roles for job in self._evaluations(role, round, ids)]
        answers = self.run_jobs(jobs)
        return {
            role: join([a for job, a in zip(jobs, answers, strict=True) if job.kind == role])
            for role in roles
        }

    def work(self, job: Job) -> object:
        """What a worker does. It reads and writes rows in place and answers with scores."""
        ids = torch.from_numpy(job.ids)
        if job.kind in ("try", "take"):
            return self._try(job) if job.step is None else self._take(job, job.step)
        if job.kind != "train":
            rows = self.sent["model"]
            if adapts(self.algorithm):
                adapted = self.algorithm.adapt(self._stack(job, self.storage.kept))
                rows = checks.adapted(self.algorithm, adapted, len(ids), self.model.layout.width)
            return self.model.score(rows, self.data[job.kind], ids)
        (outcome, added, _, gradients), played = self._trained(job)
        # an upload is often the personal model
        distinct = {id(rows): rows for rows in named(outcome).values()}.values()
        good = torch.stack([finite(rows) for rows in distinct]).all(0)
        chosen = slice(None) if bool(good.all()) else good  # a view where nobody is left out
        ids = ids[good.cpu()]
        self.storage.put(ids, chosen, outcome)
        personal = outcome.personal[chosen]
        test, train = (
            self.model.score(personal, self.data[role], ids)
            if len(ids) and role in job.roles
            else unknown(len(ids))
            for role in ("test", "reward")
        )
        upload, uploaded = test if job.uploads == "test" else train, objective.uploaded(outcome)
        if job.uploads and len(ids) and uploaded is not outcome.personal:
            upload = self.model.score(uploaded[chosen], self.data[job.uploads], ids)
        flags = good.cpu().numpy()
        kept = Played._make(values[flags] for values in played)
        return flags, test, train, upload, added[flags], kept, gradients

    def _trained(self, job: Job) -> tuple[Attempt, Played]:
        """The best attempt of each client: with its own lr and epochs, with its rival's, and, above its
        limit, with smaller and smaller lr."""
        made, count = self._attempt(job), len(job.ids)
        played = Played(job.lr.copy(), job.epochs.copy(), np.ones(count), np.zeros(count))
        if job.rivals is not None and (job.rivals.lr > 0).any():
            trying = np.flatnonzero(job.rivals.lr > 0)
            lr, epochs = job.rivals.lr[trying], job.rivals.epochs[trying]
            second = self._again(job, trying, lr, epochs)
            played.lead[trying] = known(made.objective[trying]) - known(second.objective)
            made, better = best_of(made, trying, second)
            played.lr[trying[better]], played.epochs[trying[better]] = lr[better], epochs[better]
        if job.limits is None:
            return made, played
        again = np.flatnonzero(~(made.objective <= job.limits))
        for _ in range(TRIES):
            if not len(again):
                break
            second = self._again(job, again, played.lr[again] * 0.1, played.epochs[again])
            made, better = best_of(made, again, second)
            again = again[better]
            played.lr[again] *= 0.1
            played.shrunk[again] *= 0.1
            again = again[~(made.objective[again] <= job.limits[again])]
        return made, played

    def _again(self, job: Job, places: Integers, lr: Floats, epochs: Integers) -> Attempt:
        return self._attempt(job._replace(ids=job.ids[places], lr=lr, epochs=epochs))

    def _attempt(self, job: Job) -> Attempt:
        stack = self._stack(job, self.storage.kept)
        outcome = self._local(stack)
        added = total = np.full(len(job.ids), np.nan)
        if job.uploads:
            added = self._added(stack, outcome)
        if job.uploads and (job.limits is not None or job.rivals is not None):
            total = self._uploaded_loss(stack, outcome, job.uploads) + added
        return Attempt(outcome, added, total, stack.gradients)

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

    def _uploaded_loss(self, stack: Stack, outcome: Local, role: str) -> Floats:
        """NaN for who diverged."""
        rows = objective.uploaded(outcome)
        loss = self.model.score(rows, self.data[role], stack.ids).loss
        return np.where(np.isfinite(loss), loss, np.nan)

    def _try(self, job: Job) -> tuple[Floats, int]:
        if self.holds_out:
            fit, hold = self.data["train"].of_some(job.ids), self.data["reward"].of_some(job.ids)
        else:
            fit, hold = personal.cut(self.data["train"], job.ids, self.training.seed, self.first)
        stack = self._stack(job, self.storage.kept, fit)
        losses = personal.losses(stack, hold, self.algorithm, self.holds_out or not self.storage.kept)
        if not self.holds_out:
            losses[self.sizes[job.ids] < 2] = np.nan  # nothing could be held out
        return losses, stack.gradients

    def _take(self, job: Job, step: Step) -> tuple[Floats, int]:
        stack = self._stack(job, self.storage.kept, self.data["train"].of_some(job.ids))
        # As long a way as on the part that it was chosen on.
        lr = step.lr if self.holds_out else step.lr * (1 - personal.HOLDOUT)
        rows = personal.taken(stack, self.algorithm, step._replace(lr=lr))
        ids = torch.from_numpy(job.ids)
        self.stepped[ids] = rows
        return self.model.score(rows, self.data["test"], ids).accuracy, stack.gradients

    def keep(self, job: Job) -> Callable[[], None]:
        """Keep what a job reads and overwrites until it is done; what is returned puts it back."""
        ids = torch.from_numpy(job.ids)
        kept = {name: rows[ids] for name, rows in self.storage.kept.items()} if job.kind == "train" else {}

        def put_back() -> None:
            for name, rows in kept.items():
                self.storage.kept[name][ids] = rows

        return put_back

    def uploads_of(self, ids: Integers) -> State:
        everybody = len(ids) == self.size
        return {
            n: rows if everybody else rows[torch.from_numpy(ids)] for n, rows in self.storage.uploads.items()
        }

    def state(self) -> State:
        """Everything that a round changes, as views: copy what must outlive the next round."""
        homes = {"kept": self.storage.kept, "clients": {"personal": self.storage.personal}}
        if self.has_stepped:
            homes["clients"][STEPPED] = self.stepped
        return {f"{home}.{name}": value for home, state in homes.items() for name, value in state.items()}

    def load(self, state: State) -> None:
        self.has_stepped = f"clients.{STEPPED}" in state
        for name, value in self.state().items():
            value.copy_(state[name])

    def _evaluations(self, role: str, round: int, ids: Integers) -> list[Job]:
        together = self.chunk if adapts(self.algorithm) else EVALUATED_TOGETHER
        lr, epochs = np.full(len(ids), self.training.lr), np.ones(len(ids), np.int64)
        parts = in_parts(len(ids), together)
        return [Job(role, ids[part], round, lr[part], epochs[part], self.mean_size) for part in parts]

    def _personal(self, kind: str, round: int, lr: float, epochs: int, step: Step | None = None) -> list[Job]:
        jobs = []
        for ids in in_parts(self.size, self.chunk):
            rates, counts = np.full(len(ids), lr), np.full(len(ids), epochs)
            jobs.append(Job(kind, ids, round, rates, counts, self.mean_size, step=step))
        return jobs

    def _checked(self, examples: Examples, role: str, row: Tensor) -> Examples:
        """In the model's type and on its device, with labels that it has an answer for."""
        who = f"client {{}} ({role})"
        examples = examples.of_type(row.dtype, who, self.first).to(self.model.device)
        self.model.check_examples(row, examples, who, self.first)
        return examples

    def _rehearsed(self, kept: State) -> State:
        """What an undeclared algorithm uploads: one client trains for one epoch, and nothing is kept."""
        rows = {name: value[None] for name, value in kept.items()}
        alone = Job("train", np.array([0]), 0, np.array([self.training.lr]), np.array([1]), self.mean_size)
        made = self.algorithm.local(self._stack(alone, rows))
        checks.local(self.algorithm, made, 1, self.model.layout.width, rows)
        return {name: rows[0] for name, rows in made.upload.items()}

    def _stack(self, job: Job, kept: State, own: Examples | None = None) -> Stack:
        """`own`: for a personal step, the examples of the job's clients alone, whose ids have no gap."""
        ids = torch.from_numpy(job.ids)
        examples = self.data["train"] if own is None else own
        places = ids if own is None else torch.arange(len(ids))
        return Stack(
            model=self.model,
            examples=examples,
            training=self.training,
            round=job.round,
            ids=places,
            first=self.first + int(ids[0] - places[0]),
            sent={name: value.expand(len(ids), *value.shape[1:]) for name, value in self.sent.items()},
            kept={name: value[ids] for name, value in kept.items()},
            facts=Facts(examples.sizes[places], self._counted(examples, places), job.mean_size),
            lr=torch.from_numpy(job.lr).to(self.model.device, self.model.layout.dtype),
            epochs=torch.from_numpy(job.epochs),
            purpose="" if own is None else f"personal {job.kind} ",
        )

    def _counted(self, examples: Examples, places: Tensor) -> Tensor:
        """How many examples of each class, by client."""
        if examples is self.data["train"]:
            return self.class_counts[places]
        return class_counts(examples, self.class_counts.shape[1])


def class_counts(examples: Examples, classes: int) -> Tensor:
    """[clients, classes]"""
    return torch.stack([examples.client(i)[1].bincount(minlength=classes) for i in range(len(examples))])


def declared(algorithm: Algorithm) -> bool:
    """Whether an algorithm says what it uploads; otherwise one has to try."""
    kind = type(algorithm)
    unchanged = kind.upload_state is Algorithm.upload_state and kind.same_rows is None
    return not unchanged or kind.local is Algorithm.local


def adapts(algorithm: Algorithm) -> bool:
    """Whether the shared model is fitted to each client before it is evaluated."""
    return type(algorithm).adapt is not Algorithm.adapt


def known(objective: Floats) -> Floats:
    return np.nan_to_num(objective, nan=DIVERGED)


def best_of(made: Attempt, places: Integers, second: Attempt) -> tuple[Attempt, Integers]:
    """The better of two attempts for each of these clients, and which of them the second is better for."""
    better = np.flatnonzero(~(made.objective[places] <= second.objective))
    chosen, gradients = places[better], made.gradients + second.gradients
    added, objective = made.added.copy(), made.objective.copy()
    added[chosen], objective[chosen] = second.added[better], second.objective[better]
    return Attempt(
        replaced(made.outcome, chosen, second.outcome, better), added, objective, gradients
    ), better


def replaced(outcome: Local, places: Integers, by: Local, those: Integers) -> Local:
    """An outcome in which some rows are those of another. Rows that were the same stay the same."""
    made: dict[int, Tensor] = {}

    def rows(old: Tensor, new: Tensor) -> Tensor:
        if id(old) not in made:
            made[id(old)] = old.clone()
            made[id(old)][torch.from_numpy(places)] = new[torch.from_numpy(those)]
        return made[id(old)]

    return Local(
        {name: rows(value, by.upload[name]) for name, value in outcome.upload.items()},
        rows(outcome.personal, by.personal),
        {name: rows(value, by.kept[name]) for name, value in outcome.kept.items()},
    )
