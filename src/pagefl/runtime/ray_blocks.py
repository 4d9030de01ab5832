"""RayBlocks: the clients' blocks as the driver sees them, each in an actor somewhere on a Ray cluster."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pickle import PicklingError
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pagefl.core import jobs, server, sums
from pagefl.core.algorithm import State
from pagefl.core.arrays import Integers
from pagefl.core.errors import UserError, shortened
from pagefl.core.examples import Splits
from pagefl.core.memory import available

from . import halves
from .actor import Actor, Given, arrays, parts, tensor, versions
from .halves import Say, Start
from .own_code import own_modules
from .ray_connection import connect

MOST_DEATHS = 3  # of actors of one block in a row
LONGEST_LOG, LARGEST_LOG = 100, 2**30  # calls that a new actor may have to repeat, and bytes of their models
STORE = 0.3  # of the free memory, for the object store of a Ray that is started here
CHANGING = ("train", "take")  # kinds of jobs that change a block


class RayBlocks:
    """The blocks of all clients (see `core.clients.Blocks`), and the source of their uploads.

    If an actor dies, another one takes its place: it gets the state that the block had when it was last
    read, and repeats the jobs since then.
    """

    def __init__(self, begin: Start, module: nn.Module, data: Splits, say: Say) -> None:
        self.say, self.settings = say, begin.settings
        self.ray, self.ours = connect(begin.settings.address, max(2**27, int(STORE * available())))
        self.actors: list[Any] = []
        try:
            self._build(begin, module, data)
        except BaseException:
            self.close()
            raise

    def _build(self, begin: Start, module: nn.Module, data: Splits) -> None:
        errors = self.ray.exceptions
        self.lost = (errors.RayActorError, errors.ObjectLostError, errors.WorkerCrashedError)
        self.full = (errors.ObjectStoreFullError, errors.OutOfDiskError)
        clients = len(data.train)
        own = begin.settings.model_copy(update={"path": begin.model.path})
        batch = data.train.first(own.batch_size)
        for name in own_modules(begin.algorithm, data.train.augment, begin.loss, *module.modules()):
            self.ray.cloudpickle.register_pickle_by_value(sys.modules[name])
        try:
            self.given = self.ray.put(Given(module, begin.algorithm, own, batch, clients, begin.loss))
        except (TypeError, AttributeError, PicklingError) as error:
            raise UserError(
                "executor = ray: the algorithm, module, loss or augmentation cannot be sent to an actor "
                f"({_first_line(error)}); they must not hold locks, open files or connections"
            ) from error
        self.sizes: Integers = data.train.sizes.numpy()
        self.numbers: Integers = np.arange(clients)
        self.bounds = shares(clients, halves.group_of(begin, clients), self._count())
        self.cuts: Integers = np.array([start for start, _ in self.bounds[1:]], np.int64)
        splits = {"train": data.train, "test": data.test, "holdout": data.holdout}
        public = {"game": parts(data.game), "server_test": parts(data.server_test)}
        self.data = [
            self.ray.put(
                {
                    **{role: parts(split.block(*bound)) for role, split in splits.items() if split},
                    **public,
                }
            )
            for bound in self.bounds
        ]
        self.snapshot: list[Any] = [None] * len(self.bounds)  # the state of each block when it was last read
        self.log: list[tuple[Any, dict[int, list[jobs.Job]]]] = []  # what has changed blocks since then
        self.deaths = [0] * len(self.bounds)
        self.moved = 0  # bytes of arrays between this process and actors
        for _ in self.bounds:
            self.actors.append(self._start())
        self.sent: tuple[State, Any] | None = None
        facts = [
            _good(told)
            for told in self._ask({who: self._place(who) for who in range(len(self.bounds))}).values()
        ]
        self._check(versions(begin.model.arithmetic), facts)
        self.keeps, self.names, self.size = (facts[0][name] for name in ("keeps", "uploads", "size"))

    def gather(self, numbers: Integers) -> None:
        """All clients are with their actors."""

    def settle(self, places: Integers, sizes: Integers) -> None:
        """Their rows stay with their actors."""

    def receive(self, sent: State) -> None:
        """Put what the server sends into the object store, once."""
        if self.sent is None or any(not torch.equal(self.sent[0][name], sent[name]) for name in sent):
            # A copy of our own: a worker process that is forked from this one must not hold Ray's memory.
            held = {name: value.clone() for name, value in sent.items()}
            with self._store_named():
                self.sent = held, self.ray.put(arrays(held))
            self.moved += len(self.actors) * _size(arrays(self.sent[0]))

    def run(self, wanted: list[jobs.Job]) -> list[object]:
        if any(job.kind == "train" for job in wanted):
            self._shorten_log()
        answers = self._run(wanted, [self._owner(int(job.ids[0])) for job in wanted])
        changing: dict[int, list[jobs.Job]] = {}
        for job in wanted:
            if job.kind in CHANGING:
                changing.setdefault(self._owner(int(job.ids[0])), []).append(job)
        if changing:
            assert self.sent is not None
            self.log.append((self.sent[1], changing))
        return answers

    def _shorten_log(self) -> None:
        """Before training, when nobody needs the last uploads any more."""
        held = 0 if self.sent is None else len(self.log) * _size(arrays(self.sent[0]))
        if len(self.log) > LONGEST_LOG or held > LARGEST_LOG:
            self.state(stepped=False)

    def run_for_server(self, wanted: list[server.Job], sent: State) -> list[object]:
        """The server's own evaluations: of uploads where they are, of the shared model anywhere."""
        self.receive({name: rows[0] for name, rows in sent.items()})
        owners = [
            self._owner(int(job.ids[0])) if job.of_uploads else number % len(self.actors)
            for number, job in enumerate(wanted)
        ]
        return self._run(wanted, owners)

    def rows(self, name: str, ids: Integers) -> Tensor:
        divided = self._divided(ids) or {0: ids}  # of nobody: rows of the right shape
        found = self._ask({who: ("rows", name, own) for who, own in divided.items()})
        return torch.cat([tensor(found[who]) for who in sorted(found)])

    def sum(self, name: str, ids: Integers, weights: Tensor) -> Tensor:
        shares, at = {}, 0
        for who, own in (self._divided(ids) or {0: ids}).items():
            shares[who] = ("sum", name, own, weights[at : at + len(own)].numpy())
            at += len(own)
        found = self._ask(shares)
        return sums.joined([sums.Parts(numbers, tensor(rows)) for numbers, rows in found.values()])

    def state(self, stepped: bool) -> State:
        found = self._ask(dict.fromkeys(range(len(self.bounds)), ("state", stepped)))
        self.snapshot, self.log = [found[who] for who in range(len(self.bounds))], []
        return {
            name: torch.from_numpy(np.concatenate([own[name] for own in self.snapshot]))
            for name in self.snapshot[0]
        }

    def load(self, state: State) -> None:
        parts = [
            {
                name: value[start:stop].numpy()
                for name, value in state.items()
                if name.startswith(("kept.", "clients."))
            }
            for start, stop in self.bounds
        ]
        self._ask({who: ("load", part) for who, part in enumerate(parts)})
        self.snapshot, self.log = parts, []

    def close(self) -> None:
        for actor in self.actors:
            self._end(actor)
        if self.ours:
            self.ray.shutdown()

    def _run(self, wanted: Sequence[Any], owners: list[int]) -> list[object]:
        assert self.sent is not None
        mine: dict[int, list[int]] = {}
        for number, owner in enumerate(owners):
            mine.setdefault(owner, []).append(number)
        found = self._ask(
            {who: ("run", self.sent[1], [wanted[n] for n in numbers]) for who, numbers in mine.items()}
        )
        answers: list[object] = [None] * len(wanted)
        for who, numbers in mine.items():
            for number, answer in zip(numbers, _good(found[who]), strict=True):
                answers[number] = answer
        return answers

    def _ask(self, calls: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Call a method of some actors, all at once, and wait. A dead actor is replaced and asked again."""
        asked = {who: self._call(who, *call) for who, call in calls.items()}
        found = {}
        for who, call in calls.items():
            while who not in found:
                try:
                    with self._store_named():
                        found[who] = self.ray.get(asked[who])
                except self.lost as error:
                    self._replace(who, error)
                    asked[who] = self._call(who, *call)
            self.deaths[who] = 0
            self.moved += _size(call) + _size(found[who])
        return found

    def _call(self, who: int, method: str, *arguments: Any) -> Any:
        return getattr(self.actors[who], method).remote(*arguments)

    def _start(self) -> Any:
        """An actor. One that takes the place of another may have to share a core."""
        beginning = len(self.actors) < len(self.bounds)
        free = beginning or self.ray.available_resources().get("CPU", 0) >= 1
        options = {"num_cpus": 1 if free else 0, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        return self.ray.remote(Actor).options(**options).remote()

    def _end(self, actor: Any) -> None:
        with suppress(Exception):  # it may be dead, or out of reach
            self.ray.kill(actor)

    def _place(self, who: int) -> tuple[Any, ...]:
        return "build", self.given, self.bounds[who][0], self.data[who]

    def _replace(self, who: int, error: Exception) -> None:
        self.deaths[who] += 1
        if self.deaths[who] == MOST_DEATHS:
            raise UserError(
                f"{MOST_DEATHS} actors of the same clients died ({_first_line(error)}); "
                "nothing already written is lost, and `pagefl resume` goes on"
            )
        start, stop = self.bounds[who]
        self.say(f"the actor of clients {start} to {stop - 1} died; another one takes its place")
        self._end(self.actors[who])
        self.actors[who] = self._start()
        self._call(who, *self._place(who))
        if self.snapshot[who] is not None:
            self._call(who, "load", self.snapshot[who])
        for sent, changing in self.log:
            if who in changing:
                self._call(who, "run", sent, changing[who])

    @contextmanager
    def _store_named(self) -> Iterator[None]:
        try:
            yield
        except self.full as error:
            raise UserError(
                f"Ray's object store is full ({_first_line(error)}); start Ray with a larger "
                "--object-store-memory, or use fewer clients or a smaller model; nothing already written is "
                "lost"
            ) from None

    def _divided(self, ids: Integers) -> dict[int, Integers]:
        """These clients by the actors that hold them."""
        owners = np.searchsorted([stop for _, stop in self.bounds], ids, side="right")
        return {int(who): ids[owners == who] for who in np.unique(owners)}

    def _owner(self, client: int) -> int:
        return next(who for who, (_, stop) in enumerate(self.bounds) if client < stop)

    def _count(self) -> int:
        """Actors that the cluster has room for."""
        have, free = (
            int(found.get("CPU", 0))
            for found in (self.ray.cluster_resources(), self.ray.available_resources())
        )
        wanted = self.settings.workers
        if have < max(1, wanted):
            raise UserError(
                f"workers = {wanted}: the Ray cluster has {have} CPUs, and each actor takes one; "
                f"{f'use at most {have} workers, or add' if have else 'add'} machines"
            )
        if free < max(1, wanted):
            self.say(f"{free} of the Ray cluster's {have} CPUs are free; waiting for {max(1, wanted)} …")
        return wanted or max(1, free)

    def _check(self, here: dict[str, str], found: list[dict[str, Any]]) -> None:
        for name, value in here.items():
            for who, facts in enumerate(found):
                if facts[name] != value:
                    raise UserError(
                        f"actor {who} has {name} {facts[name]}, and this process has {value}: results would "
                        "differ; install the same versions on all machines"
                    )


def shares(clients: int, group: int, actors: int) -> list[tuple[int, int]]:
    """The first client of each actor and the one behind its last: whole groups, as even as can be."""
    groups = -(-clients // group)
    bounds = [round(i * groups / min(actors, groups)) * group for i in range(min(actors, groups) + 1)]
    return [(start, min(stop, clients)) for start, stop in pairwise(bounds)]


def _good(told: tuple[bool, Any]) -> Any:
    good, found = told
    if not good:
        raise UserError(found)
    return found


def _first_line(error: Exception) -> str:
    return shortened(str(error).strip().split("\n")[0])


def _size(message: Any) -> int:
    """Bytes of the arrays in a message, where an array that occurs twice is written once."""
    return sum({id(array): array.nbytes for array in _arrays_in(message)}.values())


def _arrays_in(message: Any) -> Iterator[np.ndarray]:
    if isinstance(message, np.ndarray):
        yield message
    parts = message.values() if isinstance(message, Mapping) else message
    for part in parts if isinstance(message, (Mapping, tuple, list)) else ():
        yield from _arrays_in(part)
