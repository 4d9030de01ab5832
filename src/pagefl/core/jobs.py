"""Jobs: the pieces of a round's work, and what is known after they are done."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .algorithm import Local
from .arrays import Floats, Integers
from .evaluate import Scores
from .personal import Step

EVALUATED_TOGETHER = 50  # owners of examples in one job


class Rivals(NamedTuple):
    """A second lr and number of epochs for each client to try. It uploads what has the lower objective."""

    lr: Floats  # 0: this client tries nothing else
    epochs: Integers


class Attempt(NamedTuple):
    """What came of training once."""

    outcome: Local
    added: Floats  # by how much what the algorithm adds to losses has changed
    objective: Floats  # losses of uploads and what is added; NaN for who diverged
    evaluated: Integers  # gradients, in examples


class Played(NamedTuple):
    """What clients trained with in the end."""

    lr: Floats
    epochs: Integers
    shrunk: Floats  # by which factor lr had to shrink to stay below the limit
    lead: Floats  # by how much the rival's objective was lower; 0 without a rival


class Job(NamedTuple):
    """A piece of a round's work that any worker may do. Pieces never depend on how many workers there are."""

    kind: str  # "train", "try", "take", or the split on which the shared model is evaluated
    ids: Integers
    round: int
    lr: Floats
    epochs: Integers
    mean_size: float  # of all clients' training data; 0: it is a secret
    roles: tuple[str, ...] = ()  # the splits on which personal models are evaluated after training
    uploads: str | None = None  # the split on which uploads are evaluated too
    step: Step | None = None  # the personal step to take
    limits: Floats | None = None  # the largest objectives that uploads may have
    rivals: Rivals | None = None


class Trained(NamedTuple):
    """What is known of the clients that trained, in the order of their ids."""

    ids: Integers
    quarantined: Integers  # those whose result was not finite: as if they had not taken part
    test: Scores  # personal models on their own test data; NaN where it was not asked for
    # personal models on what rewards are made of: the hold-out where there is one, or the training data
    train: Scores
    upload: Scores  # what they upload, on the same data, where it was asked for; otherwise `train`
    added: Floats  # by how much what the algorithm adds to their loss has changed, where it was asked for
    played: Played
    before: Scores  # the shared model on test data, an entry for every client of the block; NaN: not asked
    evaluated: Integers  # gradients of all that were asked, in examples, in the order of their ids

    @property
    def gradients(self) -> int:
        return int(self.evaluated.sum())


def group_size(clients: int, groups: int, chunk: int) -> int:
    """Clients are divided into groups by their numbers, and no job trains clients of two groups. So a machine
    that holds whole groups does the same jobs as one that holds all clients.

    `groups`: the most there may be, but for clients that train alone: each of them is a group. `chunk`:
    clients that are trained together; a group is some chunks.
    """
    return 1 if chunk == 1 else -(-clients // (groups * chunk)) * chunk


def pieces(numbers: Integers, cuts: Integers, size: int, steps: Integers | None = None) -> list[Integers]:
    """The positions of these clients in pieces of at most this size. No piece goes beyond a cut.

    `numbers`: ascending. `cuts`: numbers of clients that a piece may begin with but not go on to. `steps`:
    those that take the most come first.
    """
    found = []
    for own in np.split(np.arange(len(numbers)), np.searchsorted(numbers, cuts)):
        if steps is not None:
            own = own[np.argsort(-steps[own], kind="stable")]
        found += [own[part] for part in in_parts(len(own), size)]
    return found


def in_parts(count: int, size: int) -> list[Integers]:
    """0, 1, … count - 1 in pieces of at most this size."""
    return [np.arange(start, min(start + size, count)) for start in range(0, count, size)]


def unknown(count: int) -> Scores:
    """Of models that nobody has evaluated."""
    return Scores(np.full(count, np.nan), np.full(count, np.nan))


def join(parts: Sequence[object], order: Integers | None = None) -> Scores:
    loss, accuracy = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Scores(loss, accuracy) if order is None else Scores(loss[order], accuracy[order])
