"""Partitions: which client owns which sample of a pool.

Label skew follows Acar et al. (FedDyn, ICLR 2021); shards follow McMahan et al. (FedAvg, AISTATS 2017).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from pagefl.core import rng
from pagefl.core.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Partition:
    order: Integers  # [samples] grouped by client, ascending within each client
    starts: Integers  # [clients + 1] client i's samples are order[starts[i] : starts[i + 1]]

    @classmethod
    def of(cls, owners: Integers, clients: int) -> "Partition":
        return cls(
            np.argsort(owners, kind="stable"), np.cumsum(np.bincount(owners + 1, minlength=clients + 1))
        )

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def sizes(self) -> Integers:
        return np.diff(self.starts)

    def client(self, i: int) -> Integers:
        i = range(len(self))[i]  # -1 is the last client; an unknown client raises an IndexError
        return self.order[self.starts[i] : self.starts[i + 1]]

    def owners(self) -> Integers:
        return np.repeat(np.arange(len(self)), self.sizes)[np.argsort(self.order)]

    def class_counts(self, labels: ArrayLike) -> Integers:  # [clients, classes]
        labels = _numbers("labels", labels, len(self.order))
        classes = int(labels.max()) + 1
        return np.bincount(self.owners() * classes + labels, minlength=len(self) * classes).reshape(
            -1, classes
        )


def iid(samples: int, clients: int, seed: int, sizes: ArrayLike | None = None) -> Partition:
    owners = np.repeat(np.arange(clients), _sizes(samples, clients, sizes))
    return Partition.of(rng.stream(seed, "partition", "iid").permutation(owners), clients)


def label_skew(
    labels: ArrayLike, clients: int, delta: float, seed: int, sizes: ArrayLike | None = None
) -> Partition:
    """Draw each client's mix of classes from Dir(delta). A smaller delta gives clients fewer classes."""
    labels = _numbers("labels", labels)
    room, stock = _sizes(len(labels), clients, sizes), np.unique(labels, return_counts=True)[1]
    if not 1e-9 <= delta <= 1e9:
        raise UserError(f"delta = {delta}: expected a number from 1e-9 (one class each) to 1e9 (all alike)")
    stream, shape = rng.stream(seed, "partition", "label_skew"), (clients, len(stock))
    # Gamma(delta) equals Gamma(delta + 1) * U^(1 / delta). Logarithms avoid underflow: for a small delta, all
    # gammas of a client may be zero.
    logs = np.log(stream.standard_gamma(delta + 1, shape)) - stream.standard_exponential(shape) / delta
    priors = np.exp(logs - logs.max(axis=1, keepdims=True))  # up to a factor, which cancels in the draw
    by_class = np.lexsort((stream.random(len(labels)), labels))  # in random order within each class
    return Partition.of(_deal(priors, by_class, stock, room, stream.random((len(labels), 2))), clients)


def quantity_skew(samples: int, clients: int, sigma: float, seed: int, *, minimum: int = 10) -> Integers:
    """Log-normal sizes, to be passed as `sizes` to the other functions.

    `sigma` is the standard deviation of their logarithms, as far as `minimum` allows.
    """
    minimum = max(1, min(minimum, int(_sizes(samples, clients).min())))
    if not 0 <= sigma <= 10:
        raise UserError(f"sigma = {sigma}: expected a number from 0 (all equal) to 10")
    raw = np.exp(sigma * rng.stream(seed, "partition", "sizes").normal(size=clients))
    # If the k smallest sizes are raised to the minimum, this scale remains for the rest. The right k has the
    # smallest scale, because sum(max(minimum, scale * raw)) is the maximum over k of k * minimum + scale *
    # (sum of the rest).
    rest = np.cumsum(np.sort(raw)[::-1])[::-1]
    shares = np.maximum(minimum, raw * np.min((samples - minimum * np.arange(clients)) / rest))
    sizes: Integers = shares.astype(np.int64)
    sizes[np.argsort(sizes - shares, kind="stable")[: samples - sizes.sum()]] += 1  # largest remainders
    return sizes


def shards(labels: ArrayLike, clients: int, per_client: int, seed: int) -> Partition:
    """Sort samples by label, cut them into equal shards, and give each client per_client random shards."""
    labels = _numbers("labels", labels)
    most = int(_sizes(len(labels), clients).min())
    if not 1 <= per_client <= most:
        raise UserError(f"per_client = {per_client}: expected 1 to {most}, so that no shard is empty")
    dealt = rng.stream(seed, "partition", "shards").permutation(clients * per_client) // per_client
    owners = np.empty_like(labels)
    owners[np.argsort(labels, kind="stable")] = np.repeat(dealt, _sizes(len(labels), len(dealt)))
    return Partition.of(owners, clients)


def by_user(users: ArrayLike) -> Partition:
    """One client per distinct user number, in ascending order."""
    distinct, owners = np.unique(_numbers("users", users), return_inverse=True)
    return Partition.of(owners, len(distinct))


def summary(partition: Partition, labels: ArrayLike) -> "pd.DataFrame":
    """One row per client. `effective` is exp(entropy of the labels): the effective number of classes."""
    import pandas as pd

    counts = partition.class_counts(labels)
    shares = counts / partition.sizes[:, None]
    effective = np.exp(-np.sum(shares * np.log(np.where(counts, shares, 1.0)), axis=1))
    columns = {"samples": partition.sizes, "classes": (counts > 0).sum(axis=1), "largest": shares.max(axis=1)}
    return pd.DataFrame(columns | {"effective": effective}).rename_axis("client")


@njit(cache=True)
def _deal(priors, by_class, stock, room, draws):  # type: ignore[no-untyped-def]  # numba infers
    """The owner of each sample. Random clients with room take one each. Changes priors, stock and room."""
    owners, first = np.empty_like(by_class), np.cumsum(stock) - stock
    hungry, left = np.arange(len(room)), len(room)
    for t in range(len(draws)):
        place = np.int64(draws[t, 0] * left)
        client = hungry[place]
        reach = np.cumsum(priors[client])
        if reach[-1] < 1e-300:  # no class of its prior is left
            reach = np.cumsum(stock.astype(np.float64))
        taken = np.searchsorted(reach, draws[t, 1] * reach[-1], side="right")
        stock[taken] -= 1
        owners[by_class[first[taken] + stock[taken]]] = client
        if stock[taken] == 0:
            priors[:, taken] = 0.0
        room[client] -= 1
        if room[client] == 0:
            left -= 1
            hungry[place] = hungry[left]
    return owners


def _sizes(samples: int, clients: int, sizes: ArrayLike | None = None) -> Integers:
    """The given sizes if they are valid. Without sizes: equal ones, which differ by at most one."""
    if not 1 <= clients <= samples:
        raise UserError(f"clients = {clients}: expected 1 to {samples}, the number of samples")
    if sizes is None:
        return samples // clients + (np.arange(clients) < samples % clients).astype(np.int64)
    given = _numbers("sizes", sizes, clients)
    if given.min() < 1 or given.sum() != samples:
        raise UserError(
            f"sizes = {given.min()} and more, {given.sum()} in all: expected 1 and more, {samples} in all"
        )
    return given


def _numbers(field: str, values: ArrayLike, count: int | None = None) -> Integers:
    given = np.asarray(values)
    if (
        given.ndim != 1
        or given.size != (count or given.size or 1)
        or given.dtype.kind not in "iu"
        or given.min() < 0
    ):
        raise UserError(
            f"{field} = {given.dtype}{list(given.shape)}: expected {count or 'some'} whole numbers from 0"
        )
    return given.astype(np.int64)
