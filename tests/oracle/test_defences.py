"""Every defence against ByzFL, which has none of our weights: with equal weights, both must agree."""

import numpy as np
import pytest
import torch

from pagefl.core.uploaded import Here, Uploaded
from pagefl.trust.defence import Defence

CLIENTS, HOSTILE = 11, 2
EQUAL = torch.full([CLIENTS], 1 / CLIENTS, dtype=torch.float64)


def uploads(seed: int, clients: int = CLIENTS) -> dict[str, torch.Tensor]:
    """Two arrays each; two clients are far off, one upload is long."""
    draw = np.random.default_rng(seed)
    rows = {"model": draw.normal(1.0, 1.0, (clients, 7)), "control": draw.normal(size=(clients, 2, 2))}
    for row in rows.values():
        row[[2, 5]] *= -20
        row[7] *= 3
    return {name: torch.from_numpy(value) for name, value in rows.items()}


def whole(held: dict[str, torch.Tensor], origin: torch.Tensor) -> np.ndarray:
    return np.concatenate(
        [held["model"].numpy() - origin.numpy(), held["control"].flatten(1).numpy()], axis=1
    )


def norm_of_median(vectors: np.ndarray) -> float:
    return float(np.median(np.linalg.norm(vectors, axis=1)))


def clipped(byzfl, vectors):
    return byzfl.Clipping(c=norm_of_median(vectors))(vectors.copy()).mean(0)


def centred(byzfl, vectors):
    rule = byzfl.CenteredClipping(L=1)
    found = np.zeros(vectors.shape[1])
    for _ in range(3):  # it goes on from where it was
        rule.tau = norm_of_median(vectors - found)
        found = rule(vectors)
    return found


RULES = {
    "none": lambda byzfl, vectors: byzfl.Average()(vectors),
    "clip": clipped,
    "median": lambda byzfl, vectors: byzfl.Median()(vectors),
    "trimmed-mean": lambda byzfl, vectors: byzfl.TrMean(f=HOSTILE)(vectors),
    "geometric-median": lambda byzfl, vectors: byzfl.GeometricMedian(nu=1e-6, T=3)(vectors),
    "krum": lambda byzfl, vectors: byzfl.Krum(f=HOSTILE)(vectors),
    "multi-krum": lambda byzfl, vectors: byzfl.MultiKrum(f=HOSTILE)(vectors),
    "centred-clipping": centred,
}
COUNTING = ("krum", "multi-krum", "trimmed-mean")  # rules for which a weight of two is not two clients


def mixed(byzfl, before: str, vectors: np.ndarray, seed: int, round: int) -> np.ndarray:
    if before == "nnm":
        return byzfl.NNM(f=HOSTILE)(vectors)
    if before == "bucketing":
        from pagefl.core import rng

        drawn = np.argsort(rng.keys(seed, "buckets", round, range(len(vectors))))
        with pytest.MonkeyPatch.context() as patch:  # the same draw
            patch.setattr(np.random, "permutation", lambda rows: rows[drawn])
            return byzfl.Bucketing(s=2)(vectors)
    return vectors


@pytest.mark.parametrize("before", ["none", "nnm", "bucketing"])
@pytest.mark.parametrize("name", RULES)
def test_as_byzfl(byzfl, name, before):
    for seed in range(3):
        held = uploads(seed)
        origin = torch.from_numpy(np.random.default_rng(100 + seed).normal(size=7))
        vectors = whole(held, origin)
        if before == "bucketing":
            # the last bucket is smaller than the others: its weight is less, and ByzFL has no weights
            held, vectors = {name: rows[:10] for name, rows in held.items()}, vectors[:10]
        expected = RULES[name](byzfl, mixed(byzfl, before, vectors, seed, round=4))
        count = len(vectors)
        ours = Defence(name, before, share=HOSTILE / count, seed=seed)(
            Uploaded(Here(held), np.arange(count)), {"model": origin}, 4
        )
        weights = torch.full([count], 2.5 / count, dtype=torch.float64)  # their sum is a factor
        found = np.concatenate(
            [
                (ours.sum("model", weights) / 2.5 - origin).numpy(),
                (ours.sum("control", weights) / 2.5).flatten(),
            ]
        )
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in RULES if name not in COUNTING])
def test_a_weight_of_two_is_two_clients(name):
    held = uploads(5)
    twice = {key: torch.cat([rows, rows[3:4]]) for key, rows in held.items()}
    one = Defence(name)(Uploaded(Here(held), np.arange(CLIENTS)), {}, 1)
    two = Defence(name)(Uploaded(Here(twice), np.arange(CLIENTS + 1)), {}, 1)
    weights = torch.ones(CLIENTS, dtype=torch.float64)
    weights[3] = 2
    for key in held:
        expected = two.sum(key, torch.ones(CLIENTS + 1, dtype=torch.float64))
        torch.testing.assert_close(one.sum(key, weights), expected, rtol=1e-9, atol=1e-9)


def test_what_weights_do_where_clients_are_counted():
    rows = {"model": torch.tensor([[0.0], [1.0], [2.0], [3.0], [100.0]], dtype=torch.float64)}
    weights = torch.tensor([1.0, 1.0, 2.0, 1.0, 5.0], dtype=torch.float64) / 10
    found = {
        name: float(Defence(name)(Uploaded(Here(rows), np.arange(5)), {}, 1).sum("model", weights))
        for name in ("trimmed-mean", "multi-krum", "krum")
    }
    # one of five is cut on each side; krum's nearest three of each: 2 has 1, 3 and 0 around it
    assert found == pytest.approx(
        {"trimmed-mean": (1 + 2 * 2 + 3) / 4, "multi-krum": (1 + 4 + 3) / 5, "krum": 1}
    )


def test_single_rows_are_cut_to_what_others_told():
    rows = {"length": torch.tensor([[5.0], [1e9], [4.0], [6.0], [1e-9]])}
    told = Defence("median")(Uploaded(Here(rows), np.arange(5)), {}, 1)["length"]
    assert told[:, 0].tolist() == [5.0, 6.0, 4.0, 6.0, 4.0]
