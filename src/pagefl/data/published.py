"""Federations whose clients' training and test examples others have published.

Every published example keeps its role, so that results can be compared with those of others. Such a partition
has no examples for the server. The server evaluates on the test examples of all clients together. For the
game it gets a copy of a tenth of each client's training examples, so no test example reaches a state or a
reward.
"""

from collections.abc import Sequence

import torch

from pagefl.core import rng

from .federated import FederatedData
from .pairs import Pair

GAME = 0.1  # share of each client's training examples


def federation(train: Sequence[Pair], test: Sequence[Pair], seed: int) -> FederatedData:
    copied = []
    for i, (x, y) in enumerate(train):
        order = torch.from_numpy(rng.stream(seed, "published", i).permutation(len(y)))
        some = order[: max(1, round(GAME * len(y)))].sort().values
        copied.append((x[some], y[some]))
    x = train[0][0]
    texts = not x.is_floating_point() and x.dim() == 2  # windows, which overlap
    return FederatedData(train, test, _joined(test), seed=seed, game=_joined(copied), in_order=texts)


def _joined(pairs: Sequence[Pair]) -> Pair:
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
