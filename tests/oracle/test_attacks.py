"""What hostile clients upload, against a few plain lines for each attack."""

from functools import partial

import numpy as np
import pytest
import torch

from pagefl.core import rng
from pagefl.core.uploaded import Here
from pagefl.trust.attacks import ON_UPLOADS
from pagefl.trust.attacks.line_search import LARGEST, strongest
from pagefl.trust.defence import Defence
from pagefl.trust.hostile import Attack, Attacked, chosen

CLIENTS, HOSTILE, ROUND = 9, np.array([1, 4, 6]), 3
TAKING_PART = np.array([0, 1, 2, 4, 5, 7, 8])  # one of the hostile clients is absent, and an honest one
ORIGIN = torch.arange(5, dtype=torch.float64)


def held() -> dict[str, torch.Tensor]:
    draw = np.random.default_rng(3)
    rows = {"model": draw.normal(2.0, 1.0, (CLIENTS, 5)), "control": draw.normal(size=(CLIENTS, 2, 2))}
    return {name: torch.from_numpy(value) for name, value in rows.items()}


def whole(rows: dict[str, torch.Tensor]) -> np.ndarray:
    return np.concatenate([(rows["model"] - ORIGIN).numpy(), rows["control"].flatten(1).numpy()], axis=1)


def attacked(
    name: str, defence: Defence | None = None, **numbers: float
) -> tuple[np.ndarray, dict, Attacked]:
    uploads = held()
    settings = {"factor": -10.0, "strength": 0.0, **numbers}
    attack = Attack(name, **settings, seed=5, defence=defence or Defence())
    source = Attacked(Here(uploads), uploads, HOSTILE, attack, partial(torch.zeros))
    source.replace(ROUND, TAKING_PART, {"model": ORIGIN})
    seen = {key: source.rows(key, TAKING_PART) for key in uploads}
    return whole(seen), uploads, source


OWN = whole(held())[[1, 4]]
HONEST = whole(held())[[0, 2, 5, 7, 8]]
MEAN = HONEST.mean(0)


def noise(client: int, own: np.ndarray) -> np.ndarray:
    drawn = rng.stream(5, "gaussian attack", ROUND, client).normal(size=9)
    return drawn / np.linalg.norm(drawn) * 10 * np.linalg.norm(own)


def min_max() -> np.ndarray:
    """As far back as no distance shows, by small steps."""
    most = max(np.linalg.norm(one - other) for one in HONEST for other in HONEST)
    back, length = -MEAN / np.linalg.norm(MEAN), 0.0
    while np.linalg.norm(MEAN + (length + 1e-4) * back - HONEST, axis=1).max() <= most:
        length += 1e-4
    return MEAN + length * back


def expected(name: str) -> np.ndarray:
    if name == "mimic":
        return HONEST[[np.linalg.norm(HONEST - MEAN, axis=1).argmax()] * 2]
    return {
        "signflip": lambda: -OWN,
        "scale": lambda: -10 * OWN,
        "gaussian": lambda: np.stack([noise(client, own) for client, own in zip((1, 4), OWN, strict=True)]),
        "alie": lambda: np.stack([MEAN + 1.5 * HONEST.std(0, ddof=1)] * 2),
        "ipm": lambda: np.stack([-1.5 * MEAN] * 2),
        "collude": lambda: np.stack([min_max()] * 2),
    }[name]()


@pytest.mark.parametrize("name", ON_UPLOADS)
def test_what_the_server_sees(name):
    found, uploads, _ = attacked(name, strength=1.5)
    np.testing.assert_allclose(
        found[[1, 3]], expected(name), rtol=1e-9, atol=2e-4 if name == "collude" else 1e-9
    )
    np.testing.assert_array_equal(found[[0, 2, 4, 5, 6]], HONEST)  # nobody else is changed
    np.testing.assert_array_equal(whole(uploads), whole(held()))  # nor what clients have themselves


def test_sums_are_of_what_the_server_sees():
    found, _, source = attacked("scale")
    weights = torch.arange(1.0, 8.0, dtype=torch.float64)
    total = source.sum("model", TAKING_PART, weights).numpy()
    np.testing.assert_allclose(total, weights.numpy() @ (found[:, :5] + ORIGIN.numpy()), rtol=1e-12)


@pytest.mark.parametrize("name", ["alie", "ipm"])
@pytest.mark.parametrize("defence", ["median", "trimmed-mean", "multi-krum"])
def test_the_strength_is_the_one_that_byzfl_finds(byzfl, name, defence):
    rules = {
        "median": byzfl.Median(),
        "trimmed-mean": byzfl.TrMean(f=2),
        "multi-krum": byzfl.MultiKrum(f=2),
    }
    kinds = {"alie": byzfl.Optimal_ALittleIsEnough, "ipm": byzfl.Optimal_InnerProductManipulation}
    expected = kinds[name](agg=rules[defence], pre_agg_list=[], f=2)(HONEST)
    found = attacked(name, Defence(defence, share=2 / 7))[0][1]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


def test_without_a_defence_the_search_ends_at_its_limit():
    assert strongest(lambda tau: tau) == LARGEST


def test_who_is_hostile_is_drawn_once():
    assert len(chosen(50, 0.2, 0)) == 10
    assert chosen(50, 0.2, 0).tolist() == chosen(50, 0.2, 0).tolist() != chosen(50, 0.2, 1).tolist()
    assert not len(chosen(50, 0.0, 0))
