"""Secure aggregation: the sum is the plain one, nobody sees an upload, and dropouts are recovered."""

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord
from near_nodes import NearGrid, deploy, spec_of
from scipy import stats

from pagefl.core.errors import UserError
from pagefl.deploy import parties, wire
from pagefl.deploy.secagg import masks, server
from pagefl.deploy.secagg.client import Secrets
from pagefl.deploy.secagg.messages import MASKED, SECAGG
from pagefl.deploy.secagg.server import neighbours, sum_of
from pagefl.runtime.simulation import split

LIMIT, WIDTH = 4.0, 50
NEVER = {"when": "never"}


def secure(algorithm="fedavg", players="fixed", **settings):
    own = {"secure": True, "secure_size": 500, **settings.pop("deploy", {})}
    return spec_of(algorithm, players, deploy=own, **{"personal": NEVER, **settings})


def aggregate(clients, count=0, lost_at=None, seed=0):
    """The protocol between these clients, without messages: their values, and the sum. `lost_at`: by client,
    the stage that it does not answer any more."""
    lost, values = lost_at or {}, {}
    all_secrets = {i: Secrets(ConfigRecord(), i) for i in range(clients)}

    def left(numbers, stage):
        return [i for i in numbers if lost.get(i, 9) > stage]

    keys = {i: all_secrets[i].keys(1) for i in left(all_secrets, 0)}
    ring = neighbours(list(keys), count)
    thresholds = {i: len(near) // 2 + 1 for i, near in ring.items()}
    shares = {
        i: all_secrets[i].shares(1, {j: keys[j] for j in ring[i]}, thresholds[i]) for i in left(keys, 1)
    }
    masked = {}
    for i in left(shares, 2):
        values[i] = np.random.default_rng(seed + i).uniform(-LIMIT, LIMIT, WIDTH)
        sent = {j: shares[j][i] for j in ring[i] & shares.keys() - {i}}
        words = all_secrets[i].masked(1, sent, values[i], LIMIT, clients)
        masked[i] = np.frombuffer(words, "<u4").astype(np.uint32)
    dead = shares.keys() - masked.keys()
    opened = {
        i: all_secrets[i].unmasking(1, sorted(ring[i] & masked.keys()), sorted(ring[i] & dead))
        for i in left(masked, 3)
    }
    total = sum_of(masked, dead, ring, keys, opened, thresholds)
    return values, masks.real(total, LIMIT, clients, len(masked)), masked


@pytest.mark.parametrize(
    ("clients", "count", "lost_at"),
    [
        (3, 0, {}),
        (5, 0, {0: 0, 3: 2}),  # one is never there, one has given out its shares and goes
        (5, 0, {1: 1, 4: 3}),
        (7, 5, {}),
        (9, 5, {2: 2}),
        (9, 5, {2: 3}),
    ],
)
def test_the_sum_is_the_plain_one(clients, count, lost_at):
    values, total, _ = aggregate(clients, count, lost_at)
    assert set(values) == {i for i in range(clients) if lost_at.get(i, 9) > 2}
    error = len(values) * LIMIT / masks.levels(clients)  # half a step for each
    assert total == pytest.approx(sum(values.values()), rel=0, abs=1.01 * error)


def test_too_many_are_lost():
    with pytest.raises(UserError, match="too few neighbours are left"):
        aggregate(5, 0, {0: 1, 1: 1, 2: 1})
    with pytest.raises(UserError, match="2 shares of client 0 came, and 3 are needed"):
        aggregate(5, 0, {0: 3, 1: 3, 2: 3})


def test_what_the_server_holds_looks_random():
    """One client's words are uniform, whatever its values are, and new in every round."""
    _, _, first = aggregate(3)
    _, _, second = aggregate(3)
    words = np.concatenate([*first.values(), *second.values()]) / 2**32
    assert stats.kstest(words, "uniform").pvalue > 1e-3
    assert not (first[0] == second[0]).any()


def test_masks_have_a_seed_of_256_bits():
    """AES-256 in counter mode, by another implementation of it: block by block in ECB mode."""
    from Crypto.Cipher import AES

    seed = bytes(range(32))
    blocks = b"".join(AES.new(seed, AES.MODE_ECB).encrypt(i.to_bytes(16, "big")) for i in range(3))
    assert masks.mask(seed, 10).tolist() == np.frombuffer(blocks, "<u4")[:10].tolist()


def begun(clients=5, threshold=3):
    """Clients that have exchanged keys and shares."""
    everybody = {i: Secrets(ConfigRecord(), i) for i in range(clients)}
    keys = {i: secrets.keys(1) for i, secrets in everybody.items()}
    shares = {i: secrets.shares(1, keys, threshold) for i, secrets in everybody.items()}
    sent = {i: {j: shares[j][i] for j in everybody if j != i} for i in everybody}
    return everybody, keys, sent


def test_a_client_gives_away_no_two_secrets():
    """A server that asks for more than it needs learns nothing."""
    everybody, _, sent = begun()
    values = np.zeros(WIDTH)
    for i in range(3):
        everybody[i].masked(1, sent[i], values, LIMIT, 5)
    with pytest.raises(UserError, match="stage 2 of round 1 does not follow"):
        everybody[0].masked(1, sent[0], values, LIMIT, 5)  # the same masks again
    with pytest.raises(UserError, match="both secrets of a client"):
        everybody[0].unmasking(1, [0, 1, 2], [2])
    with pytest.raises(UserError, match="does not follow"):
        everybody[0].unmasking(1, [0, 1, 2], [])  # it had one chance
    with pytest.raises(UserError, match="too few clients are left"):
        everybody[1].unmasking(1, [0, 1, 1], [2, 3, 4])
    assert len(everybody[2].unmasking(1, [0, 1, 2], [3, 4])) == 5
    with pytest.raises(UserError, match="does not follow"):
        everybody[2].unmasking(1, [3, 4, 0], [1, 2])


def test_a_client_does_not_share_with_too_few():
    secrets = {i: Secrets(ConfigRecord(), i) for i in range(5)}
    keys = {i: own.keys(1) for i, own in secrets.items()}
    with pytest.raises(UserError, match="expected more than half"):
        secrets[0].shares(1, keys, 2)
    with pytest.raises(UserError, match="of at least 3"):
        secrets[1].shares(1, {i: keys[i] for i in (0, 1)}, 2)
    with pytest.raises(UserError, match="two clients have the same public key"):
        secrets[2].shares(1, {**keys, 3: keys[4]}, 3)
    with pytest.raises(UserError, match="does not know this client's public keys"):
        secrets[3].shares(1, {**keys, 3: keys[4]}, 3)


@pytest.mark.parametrize("bad", [LIMIT * 1.01, np.nan, -np.inf])
def test_values_out_of_range_are_not_sent(bad):
    everybody, _, sent = begun()
    with pytest.raises(UserError, match="values beyond deploy"):
        everybody[0].masked(1, sent[0], np.array([0.0, bad]), LIMIT, 5)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "feddyn", "fedexp", "scaffold"])
def test_a_deployment_ends_with_the_model_of_a_plain_one(algorithm, tmp_path):
    plain = deploy(spec_of(algorithm, rounds=2, personal=NEVER), tmp_path / "plain")
    masked = deploy(secure(algorithm, rounds=2), tmp_path / "secure")
    assert torch.allclose(masked.state["server.model"], plain.state["server.model"], atol=2e-6)
    for ours, theirs in zip(masked.rounds, plain.rounds, strict=True):
        assert ours["local_accuracy"] == pytest.approx(theirs["local_accuracy"], abs=1e-6)
        assert ours["largest_weight"] == pytest.approx(theirs["largest_weight"])


class Watched(NearGrid):
    """Keeps every byte that reaches the server."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = []

    def pull_messages(self, names):
        found = super().pull_messages(names)
        self.seen += [reply.content for reply in found if not reply.has_error()]
        return found


def test_the_server_holds_no_upload(tmp_path):
    spec = secure(rounds=1)
    parties.write(split(spec.make_task(), spec), tmp_path / "data")
    grid = Watched(spec, tmp_path / "data")
    deploy(spec, tmp_path / "watched", near=grid)
    assert len(grid.seen) == 4 * 5  # an introduction and four stages for each
    assert not any(len(content[wire.ARRAYS]) for content in grid.seen)
    masked = [content[SECAGG][MASKED] for content in grid.seen if MASKED in content.get(SECAGG, {})]
    words = np.concatenate([np.frombuffer(data, "<u4") for data in masked]) / 2**32
    assert len(masked) == 4
    assert stats.kstest(words, "uniform").pvalue > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("stage", [server.KEYS, server.SHARES, "train", server.UNMASK])
def test_a_client_that_is_lost_in_a_round(stage, tmp_path):
    """The others' sum is that of a round in which it did not take part."""

    class Losing(NearGrid):
        def push_messages(self, messages):
            names = super().push_messages(messages)
            for name, message in zip(names, messages, strict=True):
                asked = message.content[wire.ASK].get("round", 0), message.metadata.message_type
                if message.metadata.dst_node_id == 1001 and asked == (1, stage):
                    del self.replies[name]
            return names

    spec = secure(rounds=1, deploy={"deadline": 0.2})
    parties.write(split(spec.make_task(), spec), tmp_path / "data")
    run = deploy(spec, tmp_path / "lost", near=Losing(spec, tmp_path / "data"))
    here = stage == server.UNMASK  # its upload has come
    silent = [] if here else [(1, 1)]
    plain = deploy(
        spec_of(rounds=1, personal=NEVER, deploy={"deadline": 0.2}), tmp_path / "plain", silent=silent
    )
    assert [entry["participants"] for entry in run.rounds] == [4 if here else 3]
    assert torch.allclose(run.state["server.model"], plain.state["server.model"], atol=2e-6)


def test_a_client_beyond_the_range_is_left_out_and_named(tmp_path):
    said = []
    spec = secure(rounds=2, deploy={"secure_range": 0.05, "fewest": 0.5})
    with pytest.raises(UserError, match=r"secure aggregation needs 3.*beyond deploy.secure_range = 0.05"):
        deploy(spec, tmp_path, said)


def test_a_node_may_insist_on_it(tmp_path):
    spec, said = spec_of(rounds=1, personal=NEVER, deploy={"patience": 0.1}), []
    parties.write(split(spec.make_task(), spec), tmp_path / "data")
    grid = NearGrid(spec, tmp_path / "data")
    grid.contexts[1000].node_config["secure"] = True
    run = deploy(spec, tmp_path, said, near=grid)
    assert run.rounds[0]["participants"] == 3
    assert "this node uploads to runs with deploy.secure = true only" in said[0]


@pytest.mark.parametrize(
    ("algorithm", "players", "settings", "sentence"),
    [
        (
            "fednova",
            "fixed",
            {},
            "FedNova cannot be aggregated securely, since it looks at the clients' own 'length'",
        ),
        ("fedavg", "page", {}, "looks at what single clients upload"),
        ("fedavg", "page-shared", {}, "looks at what single clients upload"),
        ("fedavg", "fixed", {"participation": 0.5}, "2 clients train in a round; expected at least 3"),
    ],
)
def test_what_conflicts_is_refused_in_a_sentence(algorithm, players, settings, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        deploy(secure(algorithm, players, **settings), tmp_path)
