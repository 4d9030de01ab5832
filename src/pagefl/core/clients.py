"""ClientHalf: the clients of a federation, or some of them. It divides their work into jobs and joins the
answers. Their data and rows are in a block, or in several; the server is elsewhere."""

from typing import Any, Protocol

import numpy as np

from .algorithm import Algorithm, State
from .arrays import Floats, Integers
from .block import STEPPED, adapts
from .evaluate import Scores
from .jobs import EVALUATED_TOGETHER, Job, Played, Rivals, Trained, join, pieces, unknown
from .personal import Step, Trials, Tuned
from .training.stack import Training


class Blocks(Protocol):
    """Where the clients' data and rows are: one `Block` in this process, or several on a cluster."""

    @property
    def numbers(self) -> Integers:
        """Of the clients, in ascending order. A client's place is its position here."""

    @property
    def sizes(self) -> Integers:
        """The number of training examples of each client; 0 if it is not known yet."""

    @property
    def keeps(self) -> bool:
        """Whether clients keep anything between rounds."""

    @property
    def cuts(self) -> Integers:
        """The first client of each block but the first one."""

    def gather(self, numbers: Integers) -> None:
        """These clients are needed next. Where not all are at hand at once, they take the others' places."""

    def settle(self, places: Integers, sizes: Integers) -> None:
        """These clients have trained: keep what they keep."""

    def receive(self, sent: State) -> None: ...

    @property
    def run(self) -> Any:
        """Does jobs, and returns their answers in the same order."""

    def state(self, stepped: bool) -> State: ...

    def load(self, state: State) -> None: ...


class ClientHalf:
    def __init__(
        self,
        block: Blocks,
        algorithm: Algorithm,
        training: Training,
        *,
        chunk: int,
        cuts: Integers,
        scores_alone: bool = False,
        steps: bool = True,
    ) -> None:
        """`chunk`: rows trained together. `cuts`: clients that begin a group, see `group_size`.
        `scores_alone`: see `Model`. `steps`: whether there will be a personal step."""
        self.block, self.algorithm, self.training = block, algorithm, training
        self.chunk, self.cuts, self.steps = chunk, cuts, steps
        self.alone = scores_alone and not adapts(algorithm)
        self.mean_size = 1.0 if not len(block.sizes) else float(block.sizes.mean())
        self.has_stepped = False

    @property
    def numbers(self) -> Integers:
        """Of the clients that are here, in ascending order."""
        return self.block.numbers

    @property
    def sizes(self) -> Integers:
        return self.block.sizes

    @property
    def size(self) -> int:
        return len(self.block.numbers)

    def gather(self, numbers: Integers) -> None:
        """These clients are needed next."""
        self.block.gather(numbers)

    def places(self, numbers: Integers) -> Integers:
        """The places of those of these clients that are here."""
        found = np.searchsorted(self.numbers, numbers)
        here = (found < self.size) & (self.numbers[np.minimum(found, self.size - 1)] == numbers)
        return np.asarray(found[here])

    def receive(self, sent: State) -> None:
        """What the server has sent."""
        self.block.receive(sent)

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
        steps = epochs * np.maximum(1, -(-self.sizes[ids] // self.training.batch_size))
        # those that take as long are trained together, and the longest first
        parts = pieces(self.numbers[ids], self.cuts, self.chunk, steps)
        parts.sort(key=lambda part: -steps[part[0]])
        order = np.concatenate([*parts, np.empty(0, np.int64)])
        jobs = [
            Job(
                *("train", ids[p], round, lr[p], epochs[p], self.mean_size, roles, uploads),
                limits=None if limits is None else limits[p],
                rivals=None if rivals is None else Rivals(rivals.lr[p], rivals.epochs[p]),
            )
            for p in parts
        ]
        evaluations = self._evaluations("test", round, before)
        if adapts(self.algorithm) and self.block.keeps:  # training overwrites what `adapt` reads
            judged = self.block.run(evaluations)
            answers: list[Any] = self.block.run(jobs)
        else:
            answers = self.block.run(jobs + evaluations)
            judged = answers[len(jobs) :]
        flags, tests, trains, uploaded, changes, plays, evaluated, sizes = zip(
            nothing_trained(), *answers[: len(jobs)], strict=True
        )
        good = np.concatenate(flags)
        trained = ids[order][good]
        self.block.settle(trained, np.concatenate(sizes)[good])
        back = np.argsort(trained)
        test, train, upload = (join(found, back) for found in (tests, trains, uploaded))
        added = np.concatenate(changes)[back]
        played = Played._make(np.concatenate(parts)[back] for parts in zip(*plays, strict=True))
        shared = unknown(self.size)
        for known, found in zip(shared, join([unknown(0), *judged]), strict=True):
            known[before] = found
        bad = np.sort(ids[order][~good])
        gradients = np.concatenate(evaluated)[np.argsort(order)]
        return Trained(trained[back], bad, test, train, upload, added, played, shared, gradients)

    def try_steps(self, round: int, lr: float, epochs: int) -> Trials:
        """Every choice of a personal step around this lr and these epochs, on each client's hold-out."""
        answers: list[Any] = self.block.run(self._personal("try", round, lr, epochs))
        losses, gradients = zip(*answers, strict=True)
        return Trials(np.concatenate(losses), sum(gradients))

    def take_step(self, round: int, lr: float, epochs: int, step: Step) -> Tuned:
        """The personal step on all training data. The models that training works with stay as they are."""
        answers: list[Any] = self.block.run(self._personal("take", round, lr, epochs, step))
        accuracies, gradients = zip(*answers, strict=True)
        self.has_stepped = True
        return Tuned(np.concatenate(accuracies), sum(gradients))

    def evaluate(self, round: int, *roles: str, ids: Integers | None = None) -> dict[str, Scores]:
        """The shared model on these splits of every client, or of those that are named."""
        ids = np.arange(self.size) if ids is None else ids
        jobs = [job for role in roles for job in self._evaluations(role, round, ids)]
        answers = self.block.run(jobs)
        return {
            role: join([a for job, a in zip(jobs, answers, strict=True) if job.kind == role])
            for role in roles
        }

    def state(self) -> State:
        """Everything that a round changes, as views: copy what must outlive the next round."""
        return self.block.state(self.has_stepped)

    def load(self, state: State) -> None:
        self.has_stepped = f"clients.{STEPPED}" in state
        self.block.load(state)

    def _evaluations(self, role: str, round: int, ids: Integers) -> list[Job]:
        together = self.chunk if adapts(self.algorithm) else EVALUATED_TOGETHER
        lr, epochs = np.full(len(ids), self.training.lr), np.ones(len(ids), np.int64)
        parts = pieces(self.numbers[ids], self.block.cuts if self.alone else self.cuts, together)
        return [Job(role, ids[part], round, lr[part], epochs[part], self.mean_size) for part in parts]

    def _personal(self, kind: str, round: int, lr: float, epochs: int, step: Step | None = None) -> list[Job]:
        jobs = []
        for ids in pieces(self.numbers, self.cuts, self.chunk):
            rates, counts = np.full(len(ids), lr), np.full(len(ids), epochs)
            jobs.append(Job(kind, ids, round, rates, counts, self.mean_size, step=step))
        return jobs


def nothing_trained() -> tuple[object, ...]:
    """The answer of a job without clients: in some rounds nobody takes part."""
    none = np.empty(0)
    played = Played(none, np.empty(0, np.int64), none, none)
    return (
        np.empty(0, bool),
        unknown(0),
        unknown(0),
        unknown(0),
        none,
        played,
        np.empty(0, np.int64),
        np.empty(0, np.int64),
    )
