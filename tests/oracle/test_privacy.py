"""What privacy promises, against dp-accounting and against sums by hand."""

import logging

import dp_accounting
import numpy as np
import pytest
import torch
from federations import QUICK, SETTINGS, Federation, task
from scipy import stats

import pagefl
from pagefl.algorithms import ALGORITHMS
from pagefl.core.errors import UserError
from pagefl.runtime.privacy import PrivateRun
from pagefl.runtime.settings import Settings
from pagefl.trust.privacy import clipping, mechanism
from pagefl.trust.privacy.accounting import INTERVAL, Account, Steps, noise_for
from pagefl.trust.privacy.clipping import Norm
from pagefl.trust.privacy.mechanism import Mechanism
from pagefl.trust.privacy.randomness import Simulated, System

CLIP, NOISE, SHARE = 0.4, 1.3, 0.6
SINGLE = {"fednova", "local"}  # the server looks at single uploads; nothing is uploaded
EVERYBODY = np.arange(5)


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("absl").setLevel(logging.ERROR)  # orders that dp-accounting leaves out


def composed(kind: str, events: list) -> object:
    """dp-accounting's own accountant, told of every event by itself."""
    made = {
        "rdp": dp_accounting.rdp.RdpAccountant,
        "pld": lambda: dp_accounting.pld.PLDAccountant(value_discretization_interval=INTERVAL),
    }[kind]()
    for event in events:
        made.compose(event)
    return made


def round_of(noise: float, share: float) -> object:
    return dp_accounting.PoissonSampledDpEvent(share, dp_accounting.GaussianDpEvent(noise))


@pytest.mark.parametrize("kind", ["rdp", "pld"])
@pytest.mark.parametrize(("noise", "share", "rounds"), [(1.5, 0.1, 3), (0.8, 0.02, 5), (4.0, 1.0, 9)])
def test_epsilon_is_that_of_dp_accounting(kind, noise, share, rounds):
    expected = composed(kind, [round_of(noise, share)] * rounds).get_epsilon(1e-5)
    # one round after the other, privacy losses are rounded more often than all at once
    assert Account(Steps(kind, noise, share, 1e-5)).epsilon(rounds) == pytest.approx(expected, rel=1e-3)


def test_a_coarser_grid_of_losses_never_tells_too_little():
    finest = dp_accounting.pld.PLDAccountant().compose(round_of(1.1, 0.1), 200).get_epsilon(1e-5)
    found = Account(Steps("pld", 1.1, 0.1, 1e-5)).epsilon(200)
    assert finest <= found <= finest * 1.001


@pytest.mark.parametrize("kind", ["rdp", "pld"])
def test_the_noise_is_the_least_that_will_do(kind):
    noise = noise_for(kind, 2.0, 1e-5, 40, 0.1)
    assert composed(kind, []).compose(round_of(noise, 0.1), 40).get_epsilon(1e-5) <= 2.0
    assert Account(Steps(kind, 0.99 * noise, 0.1, 1e-5)).epsilon(40) > 2.0


def test_affordable_rounds():
    account = Account(Steps("rdp", 1.1, 0.2, 1e-5))
    for most in (1, 3, 1000):
        found = account.affordable(3.0, most)
        assert account.epsilon(found) <= 3.0
        assert found == most or account.epsilon(found + 1) > 3.0
    assert account.affordable(0.01, 50) == 0


class Silent:
    """No noise, so that what is behind it can be seen."""

    kind = "simulated"

    def uniforms(self, round, count):
        return np.zeros(count)

    def normals(self, round, name, count):
        return np.zeros(count)


def federation(name: str, **own: object) -> Federation:
    """After one round of everybody."""
    module = "mlp" if ALGORITHMS[name].needs_body else "linear"
    algorithm = ALGORITHMS[name](**{**QUICK.get(name, {}), **own})
    made = Federation.of_task(task(module), algorithm, Settings(**SETTINGS))
    made.train(1, EVERYBODY, np.full(5, 0.3), np.full(5, 2))
    return made


def released(made: Federation, ids: np.ndarray, norm: Norm, randomness: object, round: int = 1) -> dict:
    half = made.server
    treat = Mechanism(half.algorithm, norm, SHARE, randomness)
    return treat(half.uploads_of(ids), half.origin, round).means


def moved_by_client_2(made: Federation) -> float:
    """By how much the sums differ with a client that uploads anything, and without it."""
    most = 0.0
    for size in (1e-3, 1.0, 1e6):
        for name, rows in made.uploads.items():
            rows[2] = size * torch.randn(rows.shape[1:], generator=torch.Generator().manual_seed(len(name)))
        norm = Norm(CLIP, 0.0, NOISE, SHARE * 5)
        with_it, without = (
            released(made, ids, norm, Silent()) for ids in (EVERYBODY, np.array([0, 1, 3, 4]))
        )
        squares = [(with_it[name].double() - without[name].double()).square().sum() for name in with_it]
        most = max(most, float(torch.stack(squares).sum().sqrt()) * norm.expected)
    return most


@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() - SINGLE))
def test_one_client_moves_all_arrays_together_by_the_norm_at_most(name):
    assert 0.9 * CLIP < moved_by_client_2(federation(name)) < CLIP * (1 + 1e-3)


def test_a_bug_in_clipping_is_seen(monkeypatch):
    """Of two arrays, each is clipped alone; one is not clipped at all; one client is not clipped at all."""
    made, right = federation("scaffold"), clipping.clipped_sums

    def apart(uploads, shapes, origin, norm):
        return {
            name: right(_only(uploads, name), {name: shapes[name]}, origin, norm)[0][name] for name in shapes
        }, 0

    def all_but_one(uploads, shapes, origin, norm):
        first = next(iter(shapes))
        total, within = right(uploads, shapes, origin, norm)
        return {**total, first: right(uploads, shapes, origin, 1e12)[0][first]}, within

    def but_client_2(uploads, shapes, origin, norm):
        alone = type(uploads)(uploads.source, uploads.ids[uploads.ids == 2])
        others = type(uploads)(uploads.source, uploads.ids[uploads.ids != 2])
        one, more = right(alone, shapes, origin, 1e12)[0], right(others, shapes, origin, norm)[0]
        return {name: one[name] + more[name] for name in shapes}, 0

    for bug in (apart, all_but_one, but_client_2):
        monkeypatch.setattr(mechanism, "clipped_sums", bug)
        assert moved_by_client_2(made) > 1.3 * CLIP, bug.__name__


def _only(uploads, name):
    class One(type(uploads.source)):
        names = (name,)

    return type(uploads)(One(uploads.source.held), uploads.ids)


def test_sums_of_clipped_uploads_by_hand():
    made = federation("scaffold")
    sent, row = made.server.sent["model"][0].double(), {}
    for i in EVERYBODY:
        model, control = made.uploads["model"][i].double() - sent, made.uploads["control"][i].double()
        length = torch.cat([model, control]).norm()
        scale = min(1.0, float(CLIP / length))
        row[i] = scale * model, scale * control
    found = released(made, EVERYBODY, Norm(CLIP, 0.0, NOISE, SHARE * 5), Silent())
    torch.testing.assert_close(found["model"].double(), sent + sum(r[0] for r in row.values()) / 3.0)
    torch.testing.assert_close(found["control"].double(), sum(r[1] for r in row.values()) / 3.0)


def test_an_upload_that_is_not_finite_counts_as_zero():
    made = federation("fedavg")
    norm = Norm(CLIP, 0.0, NOISE, SHARE * 5)
    for bad in (torch.nan, torch.inf):
        made.uploads["model"][3, 2] = bad
        with_it, without = (
            released(made, ids, norm, Silent())["model"] for ids in (EVERYBODY, np.array([0, 1, 2, 4]))
        )
        assert torch.equal(with_it, without)


@pytest.mark.parametrize("randomness", [Simulated(3), System()])
@pytest.mark.parametrize("quantile", [0.0, 0.5])
def test_the_noise_has_the_size_that_is_accounted_for(randomness, quantile):
    made, expected = federation("scaffold"), 90.0
    quiet = released(made, EVERYBODY, Norm(CLIP, 0.0, NOISE, expected), Silent())
    drawn = {name: [] for name in quiet}
    for round in range(1, 501):
        norm = Norm(CLIP, quantile, NOISE, expected)
        for name, mean in released(made, EVERYBODY, norm, randomness, round).items():
            drawn[name].append((mean - quiet[name]).double())
    # of the sums alone; the count of uploads within the norm has its own
    multiplier = (NOISE**-2 - (2 * expected / 20) ** -2) ** -0.5 if quantile else NOISE
    values = {name: torch.cat(found).numpy() * expected / CLIP for name, found in drawn.items()}
    for found in values.values():
        assert found.std() == pytest.approx(multiplier, rel=0.03)
        assert abs(found.mean()) < 0.06
        assert stats.kstest(found / found.std(), "norm").pvalue > 1e-6
    # every array and every round has noise of its own
    assert abs(np.corrcoef(values["model"], values["control"])[0, 1]) < 0.045
    steps = torch.stack(drawn["model"]).numpy()
    assert abs(np.corrcoef(steps[:-1].ravel(), steps[1:].ravel())[0, 1]) < 0.045


def test_a_norm_that_adapts_finds_the_quantile():
    """Without clients' noise: 100 clients whose norms are 1, 2, … 100."""
    norm, own = Norm(1.0, 0.3, NOISE, 100.0), np.arange(1.0, 101.0)
    chance = Simulated(0)
    for round in range(400):
        norm.follow(int((own <= float(norm.value)).sum()), 100, float(chance.normals(round, "count", 1)[0]))
    assert 20 < float(norm.value) < 42


def test_a_norm_that_adapts_costs_what_the_noise_says():
    """Sums and count, together on one sample of the clients, as dp-accounting adds them up."""
    norm = Norm(1.0, 0.5, NOISE, 60.0)
    both = [dp_accounting.GaussianDpEvent(norm.noise), dp_accounting.GaussianDpEvent(norm.count_noise / 0.5)]
    event = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.ComposedDpEvent(both))
    expected = composed("rdp", [event] * 2).get_epsilon(1e-5)
    assert Account(Steps("rdp", NOISE, 0.1, 1e-5)).epsilon(2) == pytest.approx(expected, rel=1e-9)
    with pytest.raises(UserError, match="leaves nothing for the sums"):
        Norm(1.0, 0.5, 5.0, 40.0)


def test_the_count_moves_by_a_half_at_most():
    """Of who is within the norm, and of who takes part."""
    for within, counted in ((3, 3), (2, 3)):
        norms = [Norm(1.0, 0.5, NOISE, 60.0) for _ in range(2)]
        norms[0].follow(within, counted, 0.0)
        norms[1].follow(2, 2, 0.0)
        apart = np.log(float(norms[0].value)) - np.log(float(norms[1].value))
        assert abs(apart) == pytest.approx(clipping.STEP * 0.5 / 60.0)


@pytest.mark.parametrize("randomness", [Simulated(1), System()])
def test_each_client_takes_part_on_its_own(randomness):
    half, rounds = federation("fedavg").server, 4000
    half.chances = randomness.uniforms
    took = np.zeros((rounds, half.clients))
    for round in range(rounds):
        took[round, half.participants(round, 0.3)] = 1
    assert took.mean(0) == pytest.approx(np.full(5, 0.3), abs=0.04)
    assert took.sum(1).var() == pytest.approx(5 * 0.3 * 0.7, rel=0.15)  # 0 for cohorts of one size
    assert np.abs(np.corrcoef(took.T) - np.eye(5)).max() < 0.08
    assert (took.sum(1) == 0).mean() == pytest.approx(0.7**5, abs=0.03)


def private(name: str, **own: object) -> PrivateRun:
    made = federation(name, **own)
    settings = Settings(**SETTINGS, personal={"when": "never"}, privacy={"epsilon": 50.0, "noise": NOISE})
    return PrivateRun(settings, made.server, Simulated(0))


@pytest.mark.parametrize(
    ("name", "own", "sentence"),
    [
        ("fednova", {}, "looks at each client's `length`"),
        ("scaffold", {"bounded": True}, "looks at each client's `length`"),
        ("local", {}, "upload nothing"),
    ],
)
def test_an_algorithm_that_needs_single_uploads_is_refused_before_it_trains(name, own, sentence):
    with pytest.raises(UserError, match=sentence) as refused:
        private(name, **own)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() - SINGLE))
def test_every_other_algorithm_is_private(name):
    """It gets sums, and neither how many took part nor what they weigh."""
    half = private(name).half
    after = [half.aggregated(1, ids, np.full(len(ids), 0.3)) for ids in (EVERYBODY, np.empty(0, np.int64))]
    assert all(bool(value.isfinite().all()) for state in after for value in state.values())


class Careless(pagefl.Algorithm):
    """What it is told of a round, it keeps."""

    told: list = []  # noqa: RUF012 (a notebook of the test)

    def aggregate(self, server, uploads, weights, share):
        self.told.append((weights.tolist(), share, [uploads.sum("model", weights), uploads.mean("model")]))
        return server


def test_nothing_tells_how_many_took_part_and_a_sum_is_drawn_once():
    made = Federation.of_task(task(), Careless(), Settings(**SETTINGS))
    settings = Settings(
        **SETTINGS, participation=SHARE, personal={"when": "never"}, privacy={"epsilon": 50.0, "noise": NOISE}
    )
    PrivateRun(settings, made.server, System())
    Careless.told.clear()
    made.train(1, EVERYBODY, np.full(5, 0.3), np.full(5, 2))
    for ids in (EVERYBODY, EVERYBODY[:2], EVERYBODY[:0]):
        made.server.aggregate(1, ids, np.full(len(ids), 1 / 3))
    for weights, share, (one, other) in Careless.told:
        assert (weights, share) == ([1.0], SHARE)
        assert torch.equal(one, other)
