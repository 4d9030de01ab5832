"""The server's side of SecAgg+: clients whose uploads are known as sums only."""

from collections.abc import Callable, Mapping
from random import SystemRandom
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from flwr.app import ConfigRecord, MessageType, RecordDict
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from torch import Tensor

from pagefl.core.algorithm import State
from pagefl.core.arrays import Floats, Integers
from pagefl.core.errors import UserError
from pagefl.core.server import ServerHalf
from pagefl.deploy import wire
from pagefl.deploy.remote import Exchanged, Nodes, RemoteClients, Reply
from pagefl.deploy.told import NOT_JUDGED, UNTOLD_IN_A_ROUND, implausible
from pagefl.game.messages import SIZE, Answer, Orders
from pagefl.game.protocol import ClientPolicy, ServerPolicy
from pagefl.runtime.halves import Say
from pagefl.runtime.settings import DeploySettings

from . import masks
from .client import Table, packed, unpacked
from .messages import MASKED, SECAGG
from .rules import FEWEST, Sum, check, sums_of

T = TypeVar("T")
KEYS, SHARES, UNMASK = "query.keys", "query.shares", "query.unmask"


class SecureNodes(Nodes, Protocol):
    def exchange(
        self, round: int, kind: str, contents: Mapping[int, RecordDict], read: Callable[[RecordDict], T]
    ) -> Exchanged[T]: ...

    def question(self, orders: Orders, **more: int) -> RecordDict: ...

    def reply(self, content: RecordDict, uploads: bool) -> Reply: ...


class Masked(NamedTuple):
    words: masks.Words
    told: dict[str, float]


class SumsOnly:
    """Uploads of which only sums are known, as an algorithm's server half sees them."""

    def __init__(self, uploads: State) -> None:
        """`uploads`: a row of each."""
        self.uploads = uploads
        self.sums: dict[Sum, Tensor] = {}

    @property
    def names(self) -> list[str]:
        return list(self.uploads)

    @property
    def size(self) -> int:
        return sum(value.nbytes for value in self.uploads.values())

    @property
    def cuts(self) -> Integers:
        return np.empty(0, np.int64)

    def rows(self, name: str, ids: Integers) -> Tensor:
        raise UserError(f"deploy.secure = true: nobody knows the single clients' {name!r}")

    def sum(self, name: str, ids: Integers, weights: Tensor) -> Tensor:
        known = {part.weighted: total for part, total in self.sums.items() if part.name == name}
        equal = bool((weights == weights[0]).all())
        return known[not equal] if len(known) > 1 else next(iter(known.values()))


class SecureClients(RemoteClients):
    def __init__(
        self,
        nodes: SecureNodes,
        clients: int,
        sums: list[Sum],
        source: SumsOnly,
        settings: DeploySettings,
        say: Say,
    ) -> None:
        super().__init__(nodes, clients, set(source.names), set(), settings, say)
        self.secure, self.sums, self.source = nodes, sums, source
        self.width = 1 + sum(source.uploads[name].numel() for name, _ in sums)

    def answer(self, orders: Orders) -> Answer:
        """One round, in four stages. Who is lost on the way is left out of the sum."""
        round, asked = orders.round, len(orders.clients)
        question = self.secure.question(orders._replace(sent={}, policy={}))
        keys = self._stage(orders, KEYS, {int(number): question for number in orders.clients}, _pair)
        ring = neighbours(list(keys.good), self.settings.secure_neighbours)
        thresholds = {number: self._threshold(len(near)) for number, near in ring.items()}
        contents = {
            number: self._with(
                orders, {other: keys.good[other] for other in near}, threshold=thresholds[number]
            )
            for number, near in ring.items()
        }
        shares = self._stage(orders, SHARES, contents, lambda content: unpacked(_record(content), 1))
        sharing = set(shares.good)
        full = self.secure.question(orders, summed=asked)
        contents = {}
        for number in sharing:
            own = {other: shares.good[other][number] for other in ring[number] & sharing - {number}}
            contents[number] = RecordDict({**full, SECAGG: packed(own)})
        masked = self._stage(orders, MessageType.TRAIN, contents, self._masked)
        refused = masked.refused | self._implausible(masked.good, orders.judged)
        good = {number: reply for number, reply in sorted(masked.good.items()) if number not in refused}
        alive, dead = set(good), sharing - set(good)
        contents = {
            number: self._with(
                orders, {other: [] for other in ring[number] & dead}, alive=sorted(ring[number] & alive)
            )
            for number in alive
        }
        opened = self._stage(orders, UNMASK, contents, lambda content: unpacked(_record(content), 1))
        words = sum_of(
            {number: reply.words for number, reply in good.items()},
            dead,
            ring,
            keys.good,
            opened.good,
            thresholds,
        )
        for number, reason in sorted({**keys.refused, **shares.refused, **refused}.items()):
            self.say(f"round {round}: client {number} is quarantined: {reason}")
        self._note_sizes({number: reply.told for number, reply in good.items()})
        sizes = self._capped(list(good))
        self._receive(round, words, sizes, asked)
        told = self._table({number: reply.told for number, reply in good.items()})
        told[SIZE][list(good)] = sizes
        left = {**keys.refused, **shares.refused, **refused}
        absent = {"missing": asked - len(good) - len(left), "late": keys.late}
        gradients = sum(reply.told.get("gradients", np.nan) for reply in good.values())
        return Answer(np.array(list(good)), np.array(sorted(left), np.int64), {}, {}, told, gradients, absent)

    def _stage(
        self, orders: Orders, kind: str, contents: Mapping[int, RecordDict], read: Callable[[RecordDict], T]
    ) -> Exchanged[T]:
        found, asked = self.secure.exchange(orders.round, kind, contents, read), len(orders.clients)
        if len(found.good) < max(FEWEST, self.settings.fewest * asked):
            why = "".join(f"; client {number}: {why}" for number, why in sorted(found.refused.items()))
            raise UserError(
                f"round {orders.round}: {len(found.good)} of {asked} clients answered, and secure "
                f"aggregation needs {FEWEST}, and deploy.fewest = {self.settings.fewest}; start the nodes "
                f"that are missing and give the same command again{why}"
            )
        return found

    def _with(self, orders: Orders, table: Table, **more: int | list[int]) -> RecordDict:
        content = self.secure.question(orders._replace(sent={}, policy={}))
        ask = content[wire.ASK]
        assert isinstance(ask, ConfigRecord)
        ask.update(more)
        return RecordDict({**content, SECAGG: packed(table)})

    def _threshold(self, shares: int) -> int:
        return max(int(np.ceil(self.settings.secure_threshold * shares)), shares // 2 + 1)

    def _masked(self, content: RecordDict) -> Masked:
        data = _record(content).get(MASKED)
        if not isinstance(data, bytes) or len(data) != masks.BYTES * self.width:
            raise wire.Refused(f"its masked upload is not of {self.width} numbers")
        records = {name: record for name, record in content.items() if name != SECAGG}
        return Masked(
            np.frombuffer(data, "<u4").astype(np.uint32),
            self.secure.reply(RecordDict(records), uploads=False).told,
        )

    def _implausible(self, good: dict[int, Masked], judged: bool) -> dict[int, str]:
        untold = UNTOLD_IN_A_ROUND if judged else UNTOLD_IN_A_ROUND | NOT_JUDGED
        found = {number: implausible(reply.told, untold) for number, reply in good.items()}
        return {number: reason for number, reason in found.items() if reason}

    def _receive(self, round: int, words: masks.Words, sizes: Floats, asked: int) -> None:
        values = masks.real(words, self.settings.secure_range, asked, len(sizes))
        weight = sizes / self.settings.secure_size
        if abs(values[0] - weight.sum()) > 1e-3 * weight.sum():
            raise UserError(
                f"round {round}: the secure sum is damaged: its weights are {values[0]:.4g} in sum, and "
                f"those that were told {weight.sum():.4g}; give the same command again"
            )
        place = 1
        for part in self.sums:
            row = self.source.uploads[part.name]
            total = torch.from_numpy(values[place : place + row.numel()]).view(row.shape)
            self.source.sums[part] = (total / (values[0] if part.weighted else len(sizes))).to(row)
            place += row.numel()

    def _capped(self, clients: list[int]) -> Floats:
        """A client bounds its own weight: larger sizes count as deploy.secure_size."""
        return np.minimum([self.sizes[number] for number in clients], float(self.settings.secure_size))


def secure_clients(
    half: ServerHalf,
    server: ServerPolicy,
    client: ClientPolicy,
    trained: int,
    nodes: SecureNodes,
    settings: DeploySettings,
    say: Say,
) -> SecureClients:
    """Clients for this server half, which is given sums from now on. `trained`: clients in a round."""
    row = {name: rows[0] for name, rows in half.uploads.items()}
    check(half.algorithm, half.shared, row, server, client, trained)
    source = SumsOnly(row)
    half.source = source
    sums = sums_of(half.algorithm, half.shared, row)
    return SecureClients(nodes, half.clients, sums, source, settings, say)


def neighbours(clients: list[int], count: int) -> dict[int, set[int]]:
    """Who shares secrets with whom, itself included: all, or the nearest on a ring in an order of chance."""
    if not count or count >= len(clients):
        return {client: set(clients) for client in clients}
    ring = SystemRandom().sample(clients, len(clients))
    reach = range(-(count // 2), count // 2 + 1)
    return {client: {ring[(place + step) % len(ring)] for step in reach} for place, client in enumerate(ring)}


def sum_of(
    masked: dict[int, masks.Words],
    dead: set[int],
    ring: dict[int, set[int]],
    keys: Table,
    opened: dict[int, Table],
    thresholds: dict[int, int],
) -> masks.Words:
    """The sum without masks. `dead`: clients whose shares were given out, and whose values did not come."""
    total: masks.Words = np.asarray(np.sum(list(masked.values()), axis=0, dtype=np.uint32))
    for number in (*masked, *sorted(dead)):
        given = [shares[number][0] for shares in opened.values() if number in shares]
        if len(given) < thresholds[number]:
            raise UserError(
                f"secure aggregation: {len(given)} shares of client {number} came, and {thresholds[number]} "
                "are needed; give the same command again"
            )
        try:
            secret = combine_shares(given[: thresholds[number]])
        except ValueError:
            raise UserError(
                f"secure aggregation: the shares of client {number} do not fit together"
            ) from None
        if number in masked:
            total -= masks.mask(secret, len(total))
        else:
            for other in ring[number] & masked.keys():  # what `other` added for the one that is missing
                total += masks.pairwise(number, secret, other, keys[other][0], len(total))
    return total


def _record(content: RecordDict) -> ConfigRecord:
    found = content.get(SECAGG)
    if not isinstance(found, ConfigRecord):
        raise wire.Refused(f"it has no {SECAGG}")
    return found


def _pair(content: RecordDict) -> list[bytes]:
    found = _record(content).get("keys")
    if not isinstance(found, list) or len(found) != 2 or not all(isinstance(key, bytes) for key in found):
        raise wire.Refused("it has no two public keys")
    return [bytes(key) for key in found]  # type: ignore[arg-type]
