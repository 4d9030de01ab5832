"""Patch features against a plain implementation, what they may depend on, and their cache."""

import itertools
import os

import numpy as np
import pytest
import torch

from pagefl import UserError
from pagefl.core import rng
from pagefl.data import patch_federation, patches
from pagefl.data.federated import server_halves
from pagefl.data.images import some_for_clients
from pagefl.data.originals import Original, cache_root
from pagefl.data.patch_federation import featured, federation

# What is stated in docs/data.md. Features have a mean norm of 4.
TOLERANCE = 1e-3


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(patches, "FILTERS", 10)
    monkeypatch.setattr(patches, "SAMPLED", 3000)


def pictures(count: int, seed: int, side: int = 32) -> torch.Tensor:
    """Random colours that change slowly from pixel to pixel, as in photographs."""
    coarse = np.random.default_rng(seed).integers(0, 256, (count, 3, side // 4, side // 4))
    fine = torch.nn.functional.interpolate(torch.tensor(coarse).float(), scale_factor=4, mode="bilinear")
    return fine.round().to(torch.uint8)


def pool(side: int = 32) -> dict[str, torch.Tensor]:
    labels = {"train.y": torch.arange(60) % 5, "test.y": torch.arange(80) % 5}
    return {"train.x": pictures(60, 0, side), "test.x": pictures(80, 1, side), **labels}


def contrast(patch: np.ndarray) -> np.ndarray:
    patch = patch - patch.mean()
    return patch / np.sqrt(patch.var(ddof=1) + 0.01)


def patches_of(image: np.ndarray) -> dict[tuple[int, int], np.ndarray]:
    """By row and column, from top left."""
    corners = itertools.product(range(0, 27, 2), repeat=2)
    return {(r, c): contrast(image[:, r : r + 6, c : c + 6].flatten()) for r, c in corners}


def halved(images: torch.Tensor) -> np.ndarray:
    """64×64 to 32×32: every pixel is the mean of four."""
    x = images.numpy().astype(np.float64) / 255
    if x.shape[-1] == 32:
        return x
    return (x[:, :, ::2, ::2] + x[:, :, 1::2, ::2] + x[:, :, ::2, 1::2] + x[:, :, 1::2, 1::2]) / 4


def naive(game: torch.Tensor, images: torch.Tensor, features: int, seed: int) -> np.ndarray:
    """The features of images, one image and one patch after the other, in float64."""
    every = [patch for image in halved(game) for patch in patches_of(image).values()]
    drawn = rng.stream(seed, "patches", "sampled").choice(len(every), min(len(every), 3000), replace=False)
    sampled = np.array([every[i] for i in drawn])
    mean = sampled.mean(0)
    values, vectors = np.linalg.eigh(np.cov(sampled.T))
    whitening = vectors @ np.diag(1 / np.sqrt(values + 0.02)) @ vectors.T
    filters = (sampled[:10] - mean) @ whitening
    filters /= np.linalg.norm(filters, axis=1, keepdims=True)

    def pooled(image: np.ndarray) -> np.ndarray:
        quarters = np.zeros((2, 10, 2, 2))
        for (row, column), patch in patches_of(image).items():
            answer = filters @ (whitening @ (patch - mean))
            quarter = quarters[:, :, row // 14, column // 14]
            quarter += np.stack([np.maximum(answer - 0.25, 0), np.maximum(-answer - 0.25, 0)]) / 49
        return quarters.reshape(-1)

    known = np.array([pooled(image) for image in halved(game)])
    centre, spread = known.mean(0), known.std(0, ddof=1) + 1e-3
    scaled = (known - centre) / spread
    values, vectors = np.linalg.eigh(scaled.T @ scaled / len(scaled))
    best = np.argsort(-values)[:features]
    axes = vectors[:, best] * np.sign([vectors[np.abs(vectors[:, i]).argmax(), i] for i in best])
    axes = axes / (values[best] + 1e-3) ** 0.25
    scale = 4 / np.linalg.norm(scaled @ axes, axis=1).mean()
    return scale * (np.array([pooled(image) for image in halved(images)]) - centre) / spread @ axes


@pytest.mark.parametrize("side", [32, 64])
def test_features_are_those_of_the_plain_implementation(side):
    game, others = pictures(40, 2, side), pictures(20, 3, side)
    found = patches.fit(game, 12, seed=5)(others)
    assert found.dtype == torch.float32
    assert found.shape == (20, 12)
    assert np.abs(found.numpy() - naive(game, others, 12, seed=5)).max() < TOLERANCE


def test_features_are_the_same_bits_for_any_number_of_threads():
    game = pictures(40, 2)
    once = patches.fit(game, 12, seed=0)(game)
    torch.set_num_threads(2)
    assert torch.equal(once, patches.fit(game, 12, seed=0)(game))
    assert torch.get_num_threads() == 2
    assert not torch.equal(once, patches.fit(game, 12, seed=1)(game))


def test_features_know_nothing_of_the_images_that_judge():
    """P5. Noise in them, and in anybody's labels, changes the features of no other image."""
    clean, noisy = pool(), pool()
    game, judge = server_halves(80, seed=3)
    noisy["test.x"][judge] = torch.randint(256, (40, 3, 32, 32), dtype=torch.uint8)
    noisy["train.x"][7:] = torch.randint(256, (53, 3, 32, 32), dtype=torch.uint8)
    noisy |= {name: torch.randint(5, noisy[name].shape) for name in ("train.y", "test.y")}
    before, after = (featured(given, 12, seed=3) for given in (clean, noisy))
    assert torch.equal(before["test.x"][game], after["test.x"][game])
    assert torch.equal(before["train.x"][:7], after["train.x"][:7])
    assert not torch.equal(before["test.x"][judge], after["test.x"][judge])


def test_a_federation_has_the_features_of_its_images(monkeypatch, tmp_path):
    given = pool()
    monkeypatch.setenv("PAGEFL_DATA", str(tmp_path))
    original = Original("pictures", (".",), "", str, lambda source: given)
    data = federation(original, 4, 10, "labels", 0.3, 0.0, 12, seed=3)
    known = featured(some_for_clients(given, 4, 10, seed=3), 12, seed=3)
    game, judge = server_halves(80, seed=3)
    assert torch.equal(data.game.x, known["test.x"][game])
    assert torch.equal(data.server_test.x, known["test.x"][judge])
    assert torch.equal(data.server_test.y, given["test.y"][judge])
    assert (len(data.train.y), len(data.test.y)) == (28, 12)
    everyone = torch.cat([data.train.x, data.test.x])
    assert {tuple(row) for row in everyone.tolist()} == {tuple(row) for row in known["train.x"].tolist()}


def test_more_features_than_images_are_refused():
    with pytest.raises(UserError, match=r"task.features = 40: the game half has 40 images; expected fewer"):
        patches.fit(pictures(40, 2), 40, seed=0)


def count_fits(monkeypatch) -> list[int]:
    fits, fit = [], patches.fit

    def counted(*given):
        fits.append(1)
        return fit(*given)

    monkeypatch.setattr(patch_federation.patches, "fit", counted)
    return fits


def test_features_are_fitted_once(monkeypatch):
    fits = count_fits(monkeypatch)
    first, second = (featured(pool(), 12, seed=0) for _ in range(2))
    assert len(fits) == 1
    assert all(torch.equal(first[name], second[name]) for name in first)
    changed = pool()
    changed["train.x"][0, 0, 0, 0] ^= 1
    for given, features, seed in ((pool(), 11, 0), (pool(), 12, 1), (changed, 12, 0)):
        featured(given, features, seed)
    monkeypatch.setattr(patches, "THRESHOLD", 0.3)
    featured(pool(), 12, seed=0)
    assert len(fits) == 5


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-100],
        lambda content: content[:-5] + bytes([content[-5] ^ 1]) + content[-4:],
        lambda content: b"",
        lambda content: b"\xff" * 50,
    ],
)
def test_a_damaged_cache_is_made_again(damage, monkeypatch):
    fits = count_fits(monkeypatch)
    whole = featured(pool(), 12, seed=0)
    (cache,) = cache_root().iterdir()
    content = cache.read_bytes()
    cache.write_bytes(damage(content))
    again = featured(pool(), 12, seed=0)
    assert len(fits) == 2
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    assert cache.read_bytes() == content
    assert list(cache_root().iterdir()) == [cache]


def test_a_cache_that_cannot_be_written_is_done_without(monkeypatch, tmp_path):
    usual = featured(pool(), 12, seed=0)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # where no folder can be made
    assert torch.equal(featured(pool(), 12, seed=0)["train.x"], usual["train.x"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "full"))

    def no_space(*given, **named):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(patch_federation, "save_file", no_space)
    assert torch.equal(featured(pool(), 12, seed=0)["train.x"], usual["train.x"])
    assert not list(cache_root().iterdir())
