"""Partitions: every sample has one owner, and the mixes follow the stated distributions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefl import UserError
from pagefl.data.partition import Partition, by_user, iid, label_skew, quantity_skew, shards, summary
from pagefl.reports.partition import heat_map

often = settings(max_examples=60, deadline=None, derandomize=True)
seeds = st.integers(0, 2**40)
deltas = st.sampled_from([1e-9, 1e-3, 0.1, 1.0, 100.0, 1e9])


@st.composite
def pools(draw):
    """Labels, perhaps not every class among them, and a number of clients that they can serve."""
    labels = np.array(draw(st.lists(st.integers(0, draw(st.integers(0, 12))), min_size=1, max_size=150)))
    return labels, draw(st.integers(1, len(labels)))


def check(partition, samples, sizes):
    """The contract of every partition."""
    assert partition.order.dtype == partition.starts.dtype == np.int64
    assert sorted(partition.order.tolist()) == list(range(samples))
    assert partition.starts[0] == 0
    assert partition.sizes.tolist() == list(sizes)
    assert len(partition) == len(sizes)
    for i in range(len(partition)):
        own = partition.client(i)
        assert len(own) == sizes[i]
        assert (np.diff(own) > 0).all()
        assert (partition.owners()[own] == i).all()


def equal(samples, parts):
    """As a dealer of cards would find them."""
    return [len(range(i, samples, parts)) for i in range(parts)]


@often
@given(pools(), seeds)
def test_iid_covers(pool, seed):
    labels, clients = pool
    check(iid(len(labels), clients, seed), len(labels), equal(len(labels), clients))


@often
@given(pools(), deltas, seeds)
def test_label_skew_covers(pool, delta, seed):
    labels, clients = pool
    check(label_skew(labels, clients, delta, seed), len(labels), equal(len(labels), clients))


@often
@given(pools(), deltas, st.sampled_from([0.0, 0.5, 3.0, 10.0]), seeds)
def test_given_sizes_are_kept(pool, delta, sigma, seed):
    labels, clients = pool
    sizes = quantity_skew(len(labels), clients, sigma, seed)
    before = sizes.copy()
    check(label_skew(labels, clients, delta, seed, sizes), len(labels), before)
    check(iid(len(labels), clients, seed, list(sizes)), len(labels), before)
    assert (sizes == before).all()


@often
@given(st.integers(1, 5000), st.integers(1, 60), st.floats(0, 10), st.integers(1, 40), seeds)
def test_quantities_sum_and_have_their_minimum(samples, clients, sigma, minimum, seed):
    clients = min(clients, samples)
    sizes = quantity_skew(samples, clients, sigma, seed, minimum=minimum)
    assert sizes.shape == (clients,)
    assert sizes.sum() == samples
    assert sizes.min() >= min(minimum, samples // clients)
    if sigma == 0:
        assert np.ptp(sizes) <= 1


@often
@given(pools(), st.data(), seeds)
def test_shards_are_runs_of_the_sorted_labels(pool, data, seed):
    labels, clients = pool
    per_client = data.draw(st.integers(1, len(labels) // clients))
    partition = shards(labels, clients, per_client, seed)
    check(partition, len(labels), partition.sizes)
    assert np.ptp(partition.sizes) <= per_client
    place = {sample: rank for rank, sample in enumerate(sorted(range(len(labels)), key=lambda j: labels[j]))}
    cuts = set(np.cumsum(equal(len(labels), clients * per_client)).tolist())
    for i in range(clients):
        ranks = {place[j] for j in partition.client(i).tolist()}
        begins = [r for r in ranks if r - 1 not in ranks]
        assert len(begins) <= per_client
        assert set(begins) <= cuts | {0}


@often
@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=100))
def test_by_user(users):
    numbers = sorted(set(users))
    partition = by_user(np.array(users))
    check(partition, len(users), [users.count(number) for number in numbers])
    assert [numbers[i] for i in partition.owners()] == users


@often
@given(pools(), seeds)
def test_class_counts_and_summary(pool, seed):
    labels, clients = pool
    partition = iid(len(labels), clients, seed)
    counts, rows = partition.class_counts(labels), summary(partition, labels)
    assert counts.shape == (clients, labels.max() + 1)
    for i in range(clients):
        own = labels[partition.client(i)].tolist()
        shares = [own.count(c) / len(own) for c in set(own)]
        assert counts[i].tolist() == [own.count(c) for c in range(labels.max() + 1)]
        assert rows.loc[i].tolist() == pytest.approx(
            [len(own), len(shares), max(shares), np.exp(-sum(s * np.log(s) for s in shares))]
        )


def mixes(partition, labels):
    return partition.class_counts(labels) / partition.sizes[:, None]


@pytest.mark.parametrize("delta", [0.1, 0.3, 1.0, 10.0])
def test_mixes_have_the_dirichlet_moments(delta):
    """Var p = (1/K)(1 - 1/K) / (K delta + 1), and m draws from p add their own; few classes run out before
    the end.
    """
    classes, clients, size = 10, 3000, 40
    labels = np.arange(clients * size) % classes
    shares = mixes(label_skew(labels, clients, delta, seed=3), labels)
    bernoulli = 1 / classes * (1 - 1 / classes)
    dirichlet = bernoulli / (classes * delta + 1)
    assert shares.mean(axis=0) == pytest.approx(np.full(classes, 1 / classes))
    assert shares.var(axis=0).mean() == pytest.approx(dirichlet + (bernoulli - dirichlet) / size, rel=0.07)
    # the whole shape, not two moments of it: the largest share of every client, against numpy's own Dirichlet
    rng = np.random.default_rng(0)
    plain = rng.multinomial(size, rng.dirichlet(np.full(classes, delta), clients)).max(axis=1) / size
    levels = [0.1, 0.25, 0.5, 0.75, 0.9]
    assert np.quantile(shares.max(axis=1), levels) == pytest.approx(
        np.quantile(plain, levels), abs=1.01 / size
    )


def acar(labels, clients, delta, rng):
    """FedDyn's own loop, written plainly: draw again when the class has run out."""
    stock, room = np.bincount(labels), np.full(clients, len(labels) // clients)
    priors = rng.dirichlet(np.full(len(stock), delta), clients)
    counts = np.zeros((clients, len(stock)), int)
    while room.sum():
        client = rng.choice(np.flatnonzero(room))
        prior = np.where(stock > 0, priors[client], 0)
        taken = rng.choice(len(stock), p=prior / prior.sum())
        counts[client, taken] += 1
        stock[taken] -= 1
        room[client] -= 1
    return counts


def test_scarce_classes_are_dealt_as_by_acar():
    """Four clients and classes of very different sizes: most of the mix is decided by what has run out."""
    labels, clients, repeats = np.repeat(np.arange(4), [6, 10, 24, 40]), 4, 120
    rng = np.random.default_rng(0)
    plain = np.array([acar(labels, clients, 0.5, rng) for _ in range(repeats)])
    ours = np.array(
        [label_skew(labels, clients, 0.5, seed).class_counts(labels) for seed in range(5 * repeats)]
    )
    # [repeats, classes]
    for statistic in (lambda counts: (counts**2).sum(axis=1), lambda counts: counts.max(axis=1)):
        a, b = statistic(plain), statistic(ours)
        error = np.sqrt(a.var(axis=0) / len(a) + b.var(axis=0) / len(b))
        assert (np.abs(a.mean(axis=0) - b.mean(axis=0)) < 3.5 * error).all()


def test_a_client_whose_class_is_gone_takes_what_remains_in_proportion():
    """One-hot priors and 1000 classes of a single sample: what both clients like is gone at once."""
    labels = np.repeat(np.arange(1002), [2000, 6000, *[1] * 1000])
    counts = sum(label_skew(labels, 2, 1e-9, seed, [500, 8500]).class_counts(labels)[0] for seed in range(10))
    expected = 5000 / 9000 * np.array([2000, 6000, 1000])
    assert np.array([counts[0], counts[1], counts[2:].sum()]) == pytest.approx(expected, abs=150)


@pytest.mark.parametrize("delta", [1e-9, 1e-3])
def test_a_tiny_delta_gives_one_class_each(delta):
    """As far as there is enough of it: a class that too many like runs out before they are full."""
    labels = np.arange(60_000) % 10
    largest = summary(label_skew(labels, 300, delta, 0), labels).largest
    assert largest.median() > 0.8


def test_a_huge_delta_is_nearly_uniform():
    labels = np.arange(50_000) % 10
    shares = mixes(label_skew(labels, 10, 1e9, 0), labels)
    assert np.abs(shares - 0.1).max() < 4.5 * np.sqrt(0.09 / 5000)


@pytest.mark.parametrize("sizes", [None, np.repeat([20, 380], 50)])
def test_iid_mixes_pass_a_chi_square(sizes):
    labels = np.sort(np.random.default_rng(0).choice(5, 20_000, p=[0.4, 0.3, 0.15, 0.1, 0.05]))
    counts = iid(len(labels), 100, 7, sizes).class_counts(labels)
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / counts.sum()
    freedom = 99 * 4
    assert abs(((counts - expected) ** 2 / expected).sum() - freedom) < 3.5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("sigma", [0.3, 1.0])
def test_log_sizes_spread_by_sigma(sigma):
    logs = np.log(quantity_skew(2_000_000, 2000, sigma, seed=0, minimum=1))
    assert logs.std() == pytest.approx(sigma, rel=0.05)
    centred = (logs - logs.mean()) / sigma
    assert (centred**3).mean() == pytest.approx(0, abs=0.2)
    assert (centred**4).mean() == pytest.approx(3, abs=0.5)


def test_the_minimum_leaves_the_others_their_ratios():
    plain, raised = (quantity_skew(1_000_000, 200, 1.5, 0, minimum=least) for least in (1, 2000))
    free = raised > 2000
    assert 20 < free.sum() < 180
    ratios = raised[free] / plain[free]
    assert ratios == pytest.approx(np.full(free.sum(), ratios[0]), rel=2e-3)
    assert (plain[~free] * ratios[0] < 2010).all()


def test_mcmahans_shards():
    """His MNIST, a tenth of it: 100 clients, two shards each, hence at most two digits."""
    labels = np.random.default_rng(0).permutation(np.arange(6000) % 10)
    partition = shards(labels, 100, 2, 0)
    assert set(partition.sizes) == {60}
    classes = summary(partition, labels).classes
    assert set(classes) == {1, 2}
    assert classes.mean() == pytest.approx(2 - 19 / 199, abs=0.1)  # the second shard is of the first's digit
    # a shard may now lie across two digits, but not three
    uneven = np.random.default_rng(1).integers(0, 10, 6000)
    assert summary(shards(uneven, 100, 2, 0), uneven).classes.max() <= 4


LABELS = np.arange(600) % 6
MAKERS = {
    "iid": lambda seed: iid(600, 20, seed),
    "label_skew": lambda seed: label_skew(LABELS, 20, 0.3, seed),
    "both": lambda seed: label_skew(LABELS, 20, 0.3, seed, quantity_skew(600, 20, 0.5, seed)),
    "shards": lambda seed: shards(LABELS, 20, 2, seed),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_the_seed_decides(make):
    first, again, other = make(1), make(1), make(2)
    assert (first.order == again.order).all()
    assert (first.starts == again.starts).all()
    assert (first.order != other.order).any()


def test_samples_of_a_class_are_dealt_in_a_random_order():
    """Client 0 has enough after a few hundred draws of 20,000, and yet its samples lie anywhere."""
    own = label_skew(np.zeros(20_000, int), 2, 1.0, 0, [200, 19_800]).client(0)
    assert own.mean() == pytest.approx(10_000, abs=4 * 20_000 / np.sqrt(12 * 200))


def test_clients_are_counted_from_either_end():
    partition = by_user([3, 3, 5])
    assert partition.client(-1).tolist() == partition.client(1).tolist() == [2]
    with pytest.raises(IndexError):
        partition.client(2)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: iid(5, 6, 0), "clients = 6: expected 1 to 5"),
        (lambda: iid(5, 0, 0), "clients = 0: expected 1 to 5"),
        (lambda: label_skew([0, 1], 3, 1.0, 0), "clients = 3: expected 1 to 2"),
        (lambda: quantity_skew(5, 6, 1.0, 0), "clients = 6: expected 1 to 5"),
        (lambda: shards([0, 1], 3, 1, 0), "clients = 3: expected 1 to 2"),
        (lambda: label_skew([0, 1], 2, 0.0, 0), "delta = 0.0: expected"),
        (lambda: label_skew([0, 1], 2, -1.0, 0), "delta = -1.0: expected"),
        (lambda: label_skew([0, 1], 2, float("nan"), 0), "delta = nan: expected"),
        (lambda: label_skew([0, 1], 2, float("inf"), 0), "delta = inf: expected"),
        (lambda: iid(5, 2, 0, [2, 2]), "sizes = 2 and more, 4 in all: expected 1 and more, 5 in all"),
        (lambda: iid(5, 2, 0, [5, 0]), "sizes = 0 and more, 5 in all: expected 1 and more"),
        (lambda: iid(5, 2, 0, [1, 2, 2]), r"sizes = int64\[3\]: expected 2 whole numbers"),
        (lambda: label_skew([0, 1], 2, 1.0, 0, [2, 2]), "sizes = 2 and more, 4 in all"),
        (lambda: label_skew([0, -1], 2, 1.0, 0), "labels = .* whole numbers from 0"),
        (lambda: label_skew([0.5, 1], 2, 1.0, 0), "labels = float64.* whole numbers"),
        (lambda: label_skew([], 1, 1.0, 0), "labels = .* whole numbers"),
        (lambda: shards(np.zeros((2, 2), int), 1, 1, 0), r"labels = int64\[2, 2\]"),
        (lambda: by_user([]), "users = .* whole numbers"),
        (lambda: by_user(np.array([], int)), "users = .* whole numbers"),
        (lambda: quantity_skew(50, 2, -0.1, 0), "sigma = -0.1: expected"),
        (lambda: quantity_skew(50, 2, float("nan"), 0), "sigma = nan: expected"),
        (lambda: shards([0, 1, 2, 3], 2, 3, 0), "per_client = 3: expected 1 to 2"),
        (lambda: shards([0, 1, 2, 3], 2, 0, 0), "per_client = 0: expected 1 to 2"),
        (lambda: by_user([1, 2]).class_counts([0]), "labels = .* 2 whole numbers"),
        (lambda: heat_map(np.ones((2, 2), int), "map.xyz", ""), "path = map.xyz: expected"),
    ],
)
def test_bad_input(make, sentence):
    with pytest.raises(UserError, match=sentence):
        make()


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (4, 10), (200, 60)])
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_heat_map(clients, classes, suffix, tmp_path):
    labels = np.arange(2400) % classes
    partition: Partition = label_skew(labels, clients, 0.3, 0)
    path = heat_map(partition.class_counts(labels), tmp_path / f"map.{suffix}", "a title")
    assert path.read_bytes().startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
