"""Clock: simulated time. It says who can be drawn, when a round ends, and whose uploads count in it."""

from functools import cached_property
from hashlib import sha256
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pagefl.core.algorithm import State
from pagefl.core.arrays import Flags, Floats, Integers
from pagefl.core.errors import UserError
from pagefl.core.participants import count_of, drawn
from pagefl.core.server import ServerHalf
from pagefl.devices.barrier import Barrier
from pagefl.devices.fleet import Fleet
from pagefl.devices.selection import Oort

from .late import Landed, algorithm_adds_up
from .messages import NOBODY, SIZE, Answer

FLIGHT, ROWS, SHOWN = "flight.", "rows.", "shown."
NOW = FLIGHT + "now"


class Flight(NamedTuple):
    """Clients that are still at work when their round has ended."""

    clients: Integers  # ascending
    arrivals: Floats  # of their uploads, in seconds since the start
    began: Integers  # the round in which each was drawn
    rows: dict[str, list[Tensor]]  # what each has moved by, where late uploads count: they are not copied

    def of(self, which: Flags | Integers) -> "Flight":
        if not len(self.clients):
            return self
        places = np.arange(len(self.clients))[which]
        rows = {name: [own[place] for place in places] for name, own in self.rows.items()}
        return Flight(self.clients[which], self.arrivals[which], self.began[which], rows)

    def joined(self, other: "Flight") -> "Flight":
        clients = np.concatenate([self.clients, other.clients])
        rows = {name: own + other.rows[name] for name, own in self.rows.items()}
        arrivals = np.concatenate([self.arrivals, other.arrivals])
        began = np.concatenate([self.began, other.began])
        return Flight(clients, arrivals, began, rows).of(np.argsort(clients))


class Clock:
    def __init__(
        self,
        half: ServerHalf,
        fleet: Fleet,
        barrier: Barrier,
        *,
        share: float,
        over: float = 1.0,
        late: Literal["drop", "buffer"] = "drop",
        selection: Oort | None = None,
    ) -> None:
        """`share`: of the clients whose uploads a round waits for. `over`: how many times as many are at
        work. `late`: what becomes of uploads that arrive after their round. `selection`: who is drawn, if not
        anybody."""
        self.selection = selection
        self.half, self.fleet, self.barrier, self.share = half, fleet, barrier, share
        self.wanted = count_of(share, half.clients)
        self.most = min(half.clients, int(np.ceil(over * self.wanted - 1e-9)))
        self.keeps = late == "buffer"
        if self.keeps:
            algorithm_adds_up(half)
        self.now = 0.0  # seconds since the start
        self.kept = half.source.names if self.keeps else []
        self.flight = self.nobody = Flight(NOBODY, np.empty(0), NOBODY, {name: [] for name in self.kept})

    def draw(self, round: int) -> Integers:
        """Who trains in this round, of those that are available and not at work."""
        if self.half.chances is not None:
            return self.half.participants(round, self.share)
        found = self._drawn(round)
        if not len(found):
            self.now = self._next()
            found = self._drawn(round)
        return found

    def counted(self, round: int, answer: Answer) -> Answer:
        """The answer with the uploads that arrive before the round ends, now or from rounds before."""
        arrivals = self.now + answer.told.of("seconds", answer.clients)
        awaited = self.flight if self.keeps else self.nobody
        self.now = self.barrier.end(self.now, np.concatenate([awaited.arrivals, arrivals]), self.wanted)
        late = arrivals > self.now
        landed = awaited.of(awaited.arrivals <= self.now)
        self._land(round, landed)
        self.flight = self.flight.of(self.flight.arrivals > self.now)
        if late.any():
            self.flight = self.flight.joined(self._take_off(round, answer.clients[late], arrivals[late]))
        if self.selection is not None:
            who = answer.clients[~late]
            told = (answer.told.of(name, who) for name in ("seconds", "train_loss", SIZE))
            self.selection.learn(round, who, *told)
        on_time = torch.from_numpy(~late)
        return answer._replace(
            clients=np.sort(np.concatenate([answer.clients[~late], landed.clients])),
            experience={name: rows[on_time] for name, rows in answer.experience.items() if on_time.any()},
            absent={"late": int(late.sum()), **({"stale": len(landed.clients)} if self.keeps else {})},
        )

    def _drawn(self, round: int) -> Integers:
        if not self.keeps:  # who was late has come home
            self.flight = self.flight.of(self.flight.arrivals > self.now)
        count = self.most
        if self.keeps and self.barrier.kind == "first":  # those at work are among them
            count -= len(self.flight.clients)
        if self.selection is not None:
            return self.selection.draw(round, count, self._free)
        return drawn(self.half.training.seed, round, self.half.clients, count, self._free)

    def _free(self, clients: Integers) -> Flags:
        free = np.ones(self.half.clients, bool)
        free[self.flight.clients] = False
        return (
            free[clients] & self.fleet.of(clients).available(self.now) if self.fleet.sleeps else free[clients]
        )

    def _next(self) -> float:
        """When somebody can be drawn."""
        everybody = np.arange(self.half.clients)
        begins = np.full(len(everybody), self.now)
        begins[self.flight.clients] = np.maximum(self.now, self.flight.arrivals)
        return float((begins + self.fleet.of(everybody).wait(begins)).min())

    def _take_off(self, round: int, clients: Integers, arrivals: Floats) -> Flight:
        origin = self.half.origin if self.keeps else {}
        found = {name: self.half.source.rows(name, clients) for name in self.kept}
        rows = {n: [*(own - origin[n] if n in origin else own.clone())] for n, own in found.items()}
        return Flight(clients, arrivals, np.full(len(clients), round), rows)

    def _land(self, round: int, landed: Flight) -> None:
        if not self.keeps:
            return
        if not isinstance(self.half.source, Landed):  # now, since simulated attackers are below it
            self.half.source = Landed(self.half.source)
        self.half.source.put(landed.clients, self._stacked(landed), round - landed.began, self.half.origin)

    def _stacked(self, flight: Flight) -> State:
        """A row for each client of the flight."""
        rows = self.half.source.rows
        return {name: torch.stack(own) if own else rows(name, NOBODY) for name, own in flight.rows.items()}

    def state(self) -> State:
        numbers = (self.flight.clients, self.flight.arrivals, self.flight.began, np.array([self.now]))
        names = ("clients", "arrivals", "began", "now")
        own: dict[str, Tensor] = {name: torch.from_numpy(v) for name, v in zip(names, numbers, strict=True)}
        own |= {ROWS + name: rows for name, rows in self._stacked(self.flight).items()}
        if self.selection is not None:
            own |= {SHOWN + name: value for name, value in self.selection.tensors.items()}
        return {FLIGHT + name: value for name, value in {**own, "fleet": self._fingerprint}.items()}

    def load(self, tensors: State) -> None:
        if not torch.equal(tensors[FLIGHT + "fleet"], self._fingerprint):
            raise UserError(
                "devices.name: the devices are not those that the checkpoint was made with; restore the "
                "file, or start a new run"
            )
        clients, arrivals, began, now = (
            tensors[FLIGHT + name].numpy().copy() for name in ("clients", "arrivals", "began", "now")
        )
        rows = {name: [*tensors[FLIGHT + ROWS + name].clone()] for name in self.kept}
        if self.selection is not None:
            self.selection.load({name: tensors[FLIGHT + SHOWN + name] for name in self.selection.tensors})
        self.flight, self.now = Flight(clients, arrivals, began, rows), float(now[0])

    @cached_property
    def _fingerprint(self) -> Tensor:
        return torch.tensor(list(sha256(self.fleet.facts).digest()), dtype=torch.uint8)
