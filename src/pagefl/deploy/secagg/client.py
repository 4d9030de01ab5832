"""A client's side of SecAgg+. Its secrets of a round stay on the node, and each is used once."""

import os
from collections.abc import Mapping

import numpy as np
from flwr.app import ConfigRecord
from flwr.common.secure_aggregation.crypto.shamir import create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt, generate_shared_key
from flwr.common.secure_aggregation.secaggplus_utils import (
    share_keys_plaintext_concat,
    share_keys_plaintext_separate,
)
from flwr.supercore.primitives.asymmetric import (
    bytes_to_private_key,
    bytes_to_public_key,
    generate_key_pairs,
    private_key_to_bytes,
    public_key_to_bytes,
)

from pagefl.core.algorithm import State
from pagefl.core.arrays import Floats
from pagefl.core.errors import UserError
from pagefl.runtime.settings import DeploySettings

from . import masks
from .rules import FEWEST, Sum

Table = dict[int, list[bytes]]  # by client


class Secrets:
    """The secrets of one round, between its messages. `record` is where Flower keeps them."""

    def __init__(self, record: ConfigRecord, own: int) -> None:
        self.record, self.own = record, own

    def keys(self, round: int) -> list[bytes]:
        """Stage 0: two new pairs of keys. The public ones: for masks, and for the encryption of shares."""
        self.record.clear()
        pairs = [generate_key_pairs() for _ in range(2)]
        public = [public_key_to_bytes(key) for _, key in pairs]
        self.record.update(stage=0, round=round, private=[private_key_to_bytes(key) for key, _ in pairs])
        self.record["public"] = public
        return public

    def shares(self, round: int, keys: Table, threshold: int) -> Table:
        """Stage 1: for each neighbour, shares of this client's secrets, which only it can read."""
        self._go_on(round, 1)
        if keys.get(self.own) != self.record["public"]:
            raise UserError("secure aggregation: the server does not know this client's public keys")
        if len({key for pair in keys.values() for key in pair}) < 2 * len(keys):
            raise UserError("secure aggregation: two clients have the same public key")
        if len(keys) < FEWEST or not len(keys) < 2 * threshold <= 2 * len(keys):
            raise UserError(
                f"secure aggregation: {threshold} of {len(keys)} shares would take off a mask; expected more "
                f"than half, of at least {FEWEST}"
            )
        seed, (private, opening) = os.urandom(32), _list(self.record["private"])
        own, found = sorted(keys), {}
        parts = zip(*(create_shares(secret, threshold, len(own)) for secret in (seed, private)), strict=True)
        for other, (of_seed, of_key) in zip(own, parts, strict=True):
            text = share_keys_plaintext_concat(self.own, other, of_seed, of_key)
            found[other] = [encrypt(_shared(opening, keys[other][1]), text)] if other != self.own else [text]
        self.record["seed"], self.record["threshold"] = seed, threshold
        self.record["share"] = found.pop(self.own)
        self.record["neighbours"] = own
        self.record["keys"] = [key for other in own for key in keys[other]]
        return found

    def masked(self, round: int, sent: Table, values: Floats, limit: float, clients: int) -> bytes:
        """Stage 2: these values, which nobody can read. `sent`: what neighbours encrypted for this client."""
        self._go_on(round, 2)
        if len(sent) + 1 < self.record["threshold"]:  # type: ignore[operator]
            raise UserError("secure aggregation: too few neighbours are left")
        if not np.isfinite(values).all() or np.abs(values).max(initial=0.0) > limit:
            raise UserError(f"its upload has values beyond deploy.secure_range = {limit}")
        private, opening = _list(self.record["private"])
        keys = self._keys()
        total = masks.quantised(values, limit, clients) + masks.mask(_bytes(self.record["seed"]), len(values))
        opened = {self.own: _list(self.record["share"])[0]}
        for other, (text,) in sorted(sent.items()):
            opened[other] = decrypt(_shared(opening, keys[other][1]), text)
            if share_keys_plaintext_separate(opened[other])[:2] != (other, self.own):
                raise UserError(
                    f"secure aggregation: the shares of client {other} are meant for somebody else"
                )
            total += masks.pairwise(self.own, private, other, keys[other][0], len(values))
        self.record["held"], self.record["shares"] = list(opened), list(opened.values())
        return total.astype("<u4").tobytes()

    def unmasking(self, round: int, alive: list[int], dead: list[int]) -> Table:
        """Stage 3: of each neighbour one share: of its seed if its values came, otherwise of its key."""
        self._go_on(round, 3)
        held = dict(zip(_numbers(self.record["held"]), _list(self.record["shares"]), strict=True))
        alive, dead = sorted(set(alive)), sorted(set(dead))
        if set(alive) & set(dead) or not {*alive, *dead} <= held.keys():
            raise UserError(
                "secure aggregation: the server asks for both secrets of a client, or for a stranger's"
            )
        if len(alive) < self.record["threshold"]:  # type: ignore[operator]
            raise UserError("secure aggregation: too few clients are left")
        self.record.clear()
        parts = {other: share_keys_plaintext_separate(held[other]) for other in (*alive, *dead)}
        return {
            other: [of_seed if other in alive else of_key] for other, (_, _, of_seed, of_key) in parts.items()
        }

    def _go_on(self, round: int, stage: int) -> None:
        """Each stage follows the one before, once.

        Two vectors with the same masks would reveal their difference.
        """
        if self.record.get("round") != round or self.record.get("stage") != stage - 1:
            raise UserError(
                f"secure aggregation: stage {stage} of round {round} does not follow what came before"
            )
        self.record["stage"] = stage

    def _keys(self) -> Table:
        pairs = iter(_list(self.record["keys"]))
        return {other: [next(pairs), next(pairs)] for other in _numbers(self.record["neighbours"])}


def vector(upload: State, sums: list[Sum], size: float, settings: DeploySettings) -> Floats:
    """What a client adds to the sum: its weight, and its part of each of the algorithm's sums."""
    weight = min(size / settings.secure_size, 1.0)
    parts = [(weight if weighted else 1.0) * upload[name].double().numpy().ravel() for name, weighted in sums]
    return np.concatenate([[weight], *parts])


def _shared(private: bytes, public: bytes) -> bytes:
    return generate_shared_key(bytes_to_private_key(private), bytes_to_public_key(public))


def _list(value: object) -> list[bytes]:
    assert isinstance(value, list)
    return value


def _numbers(value: object) -> list[int]:
    assert isinstance(value, list)
    return value


def _bytes(value: object) -> bytes:
    assert isinstance(value, bytes)
    return value


def packed(table: Mapping[int, list[bytes]]) -> ConfigRecord:
    return ConfigRecord({str(client): values for client, values in table.items()})


def unpacked(record: ConfigRecord, length: int) -> Table:
    """`length`: how many values each client has."""
    found: Table = {}
    for client, values in record.items():
        if not client.isdecimal() or not isinstance(values, list) or len(values) != length:
            raise UserError(f"secure aggregation: expected {length} values for each client")
        found[int(client)] = [_bytes(value) for value in values]
    return found
