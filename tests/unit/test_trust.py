"""The weights that page-shared learns: scores by finite differences, and what becomes of hostile clients."""

import numpy as np
import pytest
import torch
from federations import Federation, task

import pagefl
from pagefl import UserError
from pagefl.algorithms import ALGORITHMS
from pagefl.core.uploaded import Here, Regarded, Uploaded
from pagefl.game.players.trust import DOUBT, FEW, KEPT, LEAST, LONGEST, STEP, Trust
from pagefl.game.uploads import Uploads
from pagefl.runtime.settings import Settings


class Seen:
    """Uploads of which all is known."""

    def __init__(self, falls, norms, sizes=None):
        self.falls, self.norms = np.array(falls, float), np.array(norms, float)
        self.sizes = np.ones(len(falls)) if sizes is None else np.array(sizes, float)


def test_scores_are_falls_of_the_loss():
    federation = Federation.of_task(task(), ALGORITHMS["fedavg"](), Settings(seed=1, batch_size=4, workers=1))
    ids = np.arange(5)
    federation.train(1, ids, np.full(5, 0.1), np.full(5, 2))
    server, uploads = federation.server, Uploads(federation.server, 1, ids, np.ones(5))
    sent, examples = server.sent["model"][0].double(), server.samples["game"]
    x, y = examples.x.double(), examples.y

    def loss(row: torch.Tensor) -> float:
        weight, bias = row[:24].view(4, 6), row[24:]
        return float(torch.nn.functional.cross_entropy(x @ weight.T + bias, y))

    for i, row in enumerate(server.uploads["model"].double()):
        ahead, behind = (loss(sent + step * (row - sent)) for step in (1e-4, -1e-4))
        assert uploads.falls[i] == pytest.approx((behind - ahead) / 2e-4, rel=1e-3)
        assert uploads.norms[i] == pytest.approx(float((row - sent).norm()), rel=1e-5)


def test_one_round_of_trust():
    """Updates are cut to three median norms; scores count from their mean, and by the largest."""
    seen = Seen(falls=[*range(1, FEW), -40.0], norms=[1.0] * (FEW - 1) + [40.0])
    trust, clients = Trust(FEW + 1), np.arange(1, FEW + 1)
    trust.tensor[:2] = torch.tensor([9.0, 1.0])
    trust.learn(clients, seen)
    cut = np.array([*range(1, FEW), -40.0 * LONGEST / 40])
    off = cut - cut.mean()
    expected = KEPT * np.eye(FEW)[0] + STEP * off / np.abs(off).max()
    expected -= np.median(expected)
    np.testing.assert_allclose(trust.tensor.numpy(), [9.0, *expected])  # who is absent keeps its trust
    weights = trust.weights(clients, seen)
    unscaled = np.exp(expected) * np.array([1] * (FEW - 1) + [LONGEST / 40])
    np.testing.assert_allclose(weights, unscaled / unscaled.sum())


def test_few_clients_have_no_favourite():
    trust, clients = Trust(5), np.arange(5)
    trust.tensor[:] = torch.tensor([9.0, 0.0, DOUBT, DOUBT - 1, LEAST - 1])
    unscaled = np.array([2, 1, 1, np.exp(-1), 0])
    found = trust.weights(clients, Seen([0.0] * 5, [1.0] * 5, sizes=[2, 1, 1, 1, 1]))
    np.testing.assert_allclose(found, unscaled / unscaled.sum())


def test_nobody_is_judged_where_all_uploads_are_alike():
    seen, trust = Seen([0.5] * 3, [1.0] * 3, sizes=[1, 2, 5]), Trust(3)
    trust.learn(np.arange(3), seen)
    np.testing.assert_allclose(trust.weights(np.arange(3), seen), np.array([1, 2, 5]) / 8)


def test_whoever_harms_for_long_has_no_weight():
    seen, trust = Seen([1.0, 1.1, 0.9, -1.0], [1.0] * 4), Trust(4)
    for _ in range(6):
        trust.learn(np.arange(4), seen)
    assert trust.tensor[3] < LEAST
    assert trust.weights(np.arange(4), seen)[3] == 0


def test_most_clients_count_alike_in_means():
    trust, clients = Trust(5), np.arange(5)
    trust.tensor[:] = torch.tensor([9.0, 0.0, DOUBT, DOUBT - 1, 0.0])
    expected = [1, 1, 1, np.exp(-1), LONGEST / 30]
    np.testing.assert_allclose(trust.regard(clients, np.array([1.0, 1, 1, 1, 30])), expected)


def test_means_of_uploads_that_are_regarded_less():
    """Each update is shortened from where an untrained upload would be, and then all count the same."""
    rows, control = torch.randn(3, 4), torch.randn(3, 2)
    origin, regard = torch.randn(4), np.array([1.0, 0.25, 0.0])
    uploads = Uploaded(Here({"model": rows, "control": control}), np.arange(3))
    found = Regarded(uploads, {"model": origin}, {"model": regard, "control": regard[::-1].copy()}.get)
    shortened = [origin + float(regard[i]) * (rows[i] - origin) for i in range(3)]
    torch.testing.assert_close(found.mean("model"), sum(shortened) / 3)
    torch.testing.assert_close(found.mean("control"), (control[2] + 0.25 * control[1]) / 3)
    weights = torch.tensor([0.2, 0.3, 0.5])
    assert torch.equal(found.sum("model", weights), uploads.sum("model", weights))
    assert torch.equal(found["control"], control)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["scaffold", "feddyn"])
def test_what_hostile_clients_did_first_does_not_stay_in_server_states(algorithm):
    options = {"rounds": 20, "clients": 20, "players": "page-shared", "attack": {"name": "scale"}}
    run = pagefl.run(
        task="synthetic", algorithm=algorithm, personal={"when": "never"}, judge_every=20, **options
    )
    assert run.rounds[-1]["global_accuracy"] > 0.6


@pytest.mark.slow
def test_learned_weights_hold_where_sizes_do_not():
    def accuracy(weights: str) -> float:
        players = {"name": "page-shared", "weights": weights}
        options = {"rounds": 15, "clients": 20, "players": players, "attack": {"name": "scale"}}
        played = pagefl.run(task="synthetic", personal={"when": "never"}, judge_every=15, **options)
        return played.rounds[-1]["global_accuracy"]

    assert accuracy("size") < 0.3
    assert accuracy("learned") > 0.6


def test_ray_replaces_no_uploads():
    cluster = pytest.importorskip("pagefl.runtime.cluster")
    settings = Settings(executor="ray", attack={"name": "ipm"})
    with pytest.raises(UserError, match=r"attack\.name = ipm: executor = ray"):
        cluster.simulate(task(), ALGORITHMS["fedavg"](), settings, print)
