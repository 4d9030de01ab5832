"""Virtual time against a simulator that goes from event to event."""

from types import SimpleNamespace

import numpy as np
import pytest

from pagefl.core.participants import drawn
from pagefl.devices.barrier import Barrier
from pagefl.devices.fleet import Devices
from pagefl.devices.table import Table
from pagefl.game.clock import Clock
from pagefl.game.messages import Answer, Told

ROUNDS = 10


def half_of(case):
    """A server half whose clients upload nothing: only time matters."""
    return SimpleNamespace(
        clients=case["clients"],
        training=SimpleNamespace(seed=case["seed"]),
        chances=None,
        source=SimpleNamespace(names=[]),
        algorithm=SimpleNamespace(aggregate=lambda *arguments: None),
        shared={},
        origin={},
        model_row=np.ones(1).view(type("Row", (np.ndarray,), {"new_ones": lambda self, n: self})),
    )


def federation(seed):
    """Speeds, hours and a barrier, drawn by a seed. Rounded seconds arrive at the same time now and then."""
    chance = np.random.default_rng(seed)
    count, kind = int(chance.integers(1, 12)), ("wait", "deadline", "first")[seed % 3]
    seconds = chance.lognormal(8, 1.5, (ROUNDS, count))
    return {
        "seed": seed,
        "clients": count,
        "hours": chance.uniform(1, 24, count) if chance.integers(2) else np.full(count, 24.0),
        "opens": chance.uniform(0, 24, count),
        "seconds": seconds if chance.integers(2) else np.ceil(seconds / 2000) * 2000,
        "kind": kind,
        "deadline": float(chance.choice([2000, 4000, chance.uniform(100, 20_000)])),
        "share": float(chance.uniform(0.1, 1)),
        "over": float(chance.uniform(1, 3)) if kind == "first" else 1.0,
        "late": "buffer" if kind != "wait" and chance.integers(2) else "drop",
    }


def by_clock(case):
    """(clock, who took part, who counted, how many were late) in every round."""
    one, half = np.ones(case["clients"]), half_of(case)
    devices = Devices(one, one, one, one, one.astype(np.int64), case["opens"], case["hours"])
    barrier = Barrier(case["kind"], case["deadline"])
    shares = {name: case[name] for name in ("share", "over", "late")}
    clock = Clock(half, Table(devices, ("device",)), barrier, **shares)
    found = []
    for round in range(1, ROUNDS + 1):
        clients = clock.draw(round)
        told = Told(np.arange(half.clients))
        told["seconds"] = case["seconds"][round - 1]
        answer = clock.counted(round, Answer(clients, np.empty(0, np.int64), {}, {}, told))
        found.append((clock.now, clients.tolist(), answer.clients.tolist(), answer.absent["late"]))
    return found


class Events:
    """A server that is told of one event after the other."""

    def __init__(self, case):
        self.case, self.now, self.under_way, self.found = case, 0.0, [], []
        self.wanted = max(1, int(case["share"] * case["clients"] + 0.5))
        self.most = min(case["clients"], int(np.ceil(case["over"] * self.wanted - 1e-9)))

    def opens(self, client, now):
        """When a client is next available: its window goes round with the day."""
        opens, hours = self.case["opens"][client], self.case["hours"][client]
        day = np.floor((now / 3600 - opens) / 24)
        if hours >= 24 or now / 3600 + 1e-9 < opens + 24 * day + hours:
            return now
        return (opens + 24 * (day + 1)) * 3600

    def draw(self, round):
        busy = {client for _, client, _ in self.under_way}
        others = [i for i in range(self.case["clients"]) if i not in busy]
        free = [i for i in others if self.opens(i, self.now) == self.now]
        room = self.most
        if self.case["kind"] == "first" and self.case["late"] == "buffer":
            room -= len(busy)
        draw = drawn(self.case["seed"], round, self.case["clients"], room, lambda who: np.isin(who, free))
        return draw.tolist()

    def forget(self):
        """Too late, and of no use: these clients can be drawn again."""
        if self.case["late"] == "drop":
            self.under_way = [upload for upload in self.under_way if upload[0] > self.now]

    def play(self, round):
        self.forget()
        chosen = self.draw(round)
        if not chosen:
            busy = {client: max(at, self.now) for at, client, _ in self.under_way}
            begins = [busy.get(client, self.now) for client in range(self.case["clients"])]
            self.now = min(self.opens(client, begin) for client, begin in enumerate(begins))
            self.forget()
            chosen = self.draw(round)
        begun = self.now
        for client in chosen:
            self.under_way.append((begun + self.case["seconds"][round - 1, client], client, round))
        awaited = [u for u in self.under_way if self.case["late"] == "buffer" or u[2] == round]
        counted = []
        while awaited:
            at = min(upload[0] for upload in awaited)
            if self.case["kind"] == "deadline" and counted and at > begun + self.case["deadline"]:
                self.now = max(self.now, begun + self.case["deadline"])
                break
            if self.case["kind"] == "first" and len(counted) >= self.wanted and at > self.now:
                break
            here = [upload for upload in awaited if upload[0] == at]
            self.now = max(self.now, at)
            counted += [client for _, client, _ in here]
            awaited = [upload for upload in awaited if upload not in here]
            self.under_way = [upload for upload in self.under_way if upload not in here]
            if self.case["kind"] == "deadline" and at > begun + self.case["deadline"]:
                break
        late = [client for _, client, began in self.under_way if began == round]
        self.found.append((self.now, chosen, sorted(counted), len(late)))


@pytest.mark.parametrize("kind", ["wait", "deadline", "first"])
def test_the_clock_is_that_of_a_simulator_of_events(kind):
    cases = [case for case in map(federation, range(450)) if case["kind"] == kind]
    late = stale = 0
    for case in cases:
        events = Events(case)
        for round in range(1, ROUNDS + 1):
            events.play(round)
        for (now, *who), (expected, *them) in zip(by_clock(case), events.found, strict=True):
            assert now == pytest.approx(expected, rel=1e-12), case
            assert who == them, case
        late += sum(entry[3] for entry in events.found)
        stale += sum(len(set(counted) - set(chosen)) for _, chosen, counted, _ in events.found)
    assert (late > 200 and stale > 200) or kind == "wait"
