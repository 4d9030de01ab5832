"""Every algorithm and every defence together; attacks with workers, partial participation and resume."""

import numpy as np
import pytest
import torch
from federations import QUICK, task

import pagefl
from pagefl import UserError
from pagefl.algorithms import ALGORITHMS
from pagefl.core.uploaded import Here, Uploaded
from pagefl.experiments import spec as specs
from pagefl.game.sizes import capped
from pagefl.trust.attacks import ON_UPLOADS
from pagefl.trust.defence import Defence
from pagefl.trust.defences import OF_COLUMNS, OF_UPDATES

RULES = [*OF_UPDATES, *OF_COLUMNS]
SMALL = {"sizes": (3, 9, 12, 5, 7)}
ATTACKED = {"attack": {"name": "alie", "share": 0.4}, "defence": {"before": "bucketing"}}


def run(algorithm="fedavg", module="mlp", **settings):
    own = ALGORITHMS[algorithm](**QUICK.get(algorithm, {}))
    return pagefl.run(task=task(module, **SMALL), algorithm=own, **{"rounds": 2, **settings})


def bits(run):
    timeless = [{name: value for name, value in entry.items() if name != "seconds"} for entry in run.rounds]
    return {name: value.numpy().tobytes() for name, value in run.state.items()}, timeless


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_with_a_defence_and_an_attack(name):
    rule = RULES[1 + list(ALGORITHMS).index(name) % (len(RULES) - 1)]
    played = run(name, defence={"name": rule, "before": "nnm"}, attack={"name": "scale"})
    assert np.isfinite(played.rounds[-1]["global_loss"])
    assert played.rounds[-1]["hostile"] == 1


@pytest.mark.parametrize("before", ["none", "nnm", "bucketing"])
@pytest.mark.parametrize("name", RULES)
def test_equal_uploads_are_their_mean_and_order_does_not_matter(name, before):
    draw = torch.Generator().manual_seed(1)
    rows = torch.randn(8, 6, generator=draw, dtype=torch.float64)
    weights = torch.rand(8, generator=draw, dtype=torch.float64)
    weights /= weights.sum()
    origin, defence = {"model": rows[0] / 2}, Defence(name, before)
    same = Uploaded(Here({"model": rows[:1].repeat(8, 1)}), np.arange(8))
    torch.testing.assert_close(defence(same, origin, 1).sum("model", weights), rows[0])
    # clients with other numbers, and with them their places
    order = np.array([3, 0, 7, 5, 1, 2, 6, 4])
    found = defence(Uploaded(Here({"model": rows}), np.arange(8)), origin, 1).sum("model", weights)
    if before != "bucketing":  # buckets are drawn by the clients' numbers
        moved = Uploaded(Here({"model": rows[order]}), np.arange(8))
        torch.testing.assert_close(defence(moved, origin, 1).sum("model", weights[order]), found)
    assert torch.isfinite(found).all()


@pytest.mark.parametrize("attack", [*ON_UPLOADS, "labelflip"])
def test_workers_change_no_bit(attack):
    options = {
        "players": {"name": "page", "warm_up": 1},
        "participation": 0.8,
        "attack": {"name": attack, "share": 0.4},
    }
    assert bits(run(workers=2, **options)) == bits(run(workers=1, **options))


@pytest.mark.parametrize("players", ["fixed", "page-shared"])
def test_resume_goes_on_to_the_same_bits(tmp_path, players):
    def options(name):
        own = {"task": task("linear", **SMALL), "algorithm": ALGORITHMS["fedavg"](), "out": tmp_path / name}
        return {**own, "players": players, "rounds": 4, "checkpoint_seconds": 0.0, **ATTACKED}

    def fail(record):
        if record["round"] == 2:
            raise RuntimeError

    whole = pagefl.run(**options("whole"))
    with pytest.raises(RuntimeError):
        pagefl.run(**options("stopped"), observe=fail)
    own = {name: options("stopped")[name] for name in ("task", "algorithm")}
    assert bits(pagefl.resume(tmp_path / "stopped", **own)) == bits(whole)


def test_own_models_are_not_touched():
    """In the first round hostile clients train as everybody does, and only what they upload is replaced."""
    clean, hostile = (run(rounds=1, attack=attack) for attack in ({}, {"name": "scale", "share": 0.4}))
    assert torch.equal(clean.state["clients.personal"], hostile.state["clients.personal"])
    assert not torch.equal(clean.state["server.model"], hostile.state["server.model"])


def test_accuracies_are_of_honest_clients():
    played = run(rounds=1, module="linear", attack={"name": "signflip", "share": 0.4})
    record, clients = played.rounds[-1], played.client_rounds[-1]
    honest = [
        value for value, bad in zip(clients["local_accuracy"], clients["hostile"], strict=True) if not bad
    ]
    assert record["hostile"] == sum(clients["hostile"]) == 2
    assert record["local_accuracy"] == pytest.approx(np.mean(honest))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"defence.name": "mode"}, "defence.name = 'mode'"),
        ({"defence.share": 0.5}, "defence.share = 0.5"),
        ({"attack.share": 1.0}, "attack.share = 1.0"),
        ({"attack.nam": "ipm"}, "did you mean name?"),
        ({"defence.largest_size_share": 0.0}, "defence.largest_size_share = 0.0"),
    ],
)
def test_bad_settings(settings, words):
    raw = {}
    for name, value in settings.items():
        specs.put(raw, name, value)
    with pytest.raises(UserError, match=words.replace(".", r"\.").replace("?", r"\?")):
        specs.resolve(raw)


def test_an_environment_has_no_attacks():
    with pytest.raises(UserError, match=r"attack\.name = ipm"):
        pagefl.environment(task="synthetic", attack={"name": "ipm"})


@pytest.mark.parametrize(
    ("sizes", "share", "expected"),
    [
        ([10, 20, 30], 0.5, [10, 20, 30]),
        ([10, 20, 1e9], 0.5, [10, 20, 30]),
        ([10, 10, 10, 1e9, 1e9], 0.4, [10, 10, 10, 60, 60]),
        ([10, 1e9], 0.5, [10, 1e9]),  # of two, nothing is cut
        ([7, 20, 30], 0.2, [7, 7, 7]),
    ],
)
def test_a_size_claim_is_cut(sizes, share, expected):
    assert capped(np.array(sizes, float), share).tolist() == pytest.approx(expected)
