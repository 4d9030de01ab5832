"""What every algorithm must keep. A new one is tested by being registered."""

import copy
from dataclasses import asdict
from functools import cache

import numpy as np
import pytest
import torch
from federations import MODULES, QUICK, SETTINGS, Federation, data, task, trained_part

import pagefl
from pagefl import Algorithm, FederatedData, Task
from pagefl.algorithms import ALGORITHMS
from pagefl.core import rng
from pagefl.core.layout import Layout
from pagefl.runtime.run import Run
from pagefl.runtime.settings import Settings

CASES = [
    (name, module)
    for name in ALGORITHMS
    for module in MODULES
    if module != "linear" or not ALGORITHMS[name].needs_body
]
# Tests of one case share its reference, and so a worker.
every_case = pytest.mark.parametrize(
    ("name", "module"),
    [
        pytest.param(
            *case,
            marks=[pytest.mark.xdist_group("-".join(case)), *[pytest.mark.slow] * (case[1] == "mlp")],
        )
        for case in CASES
    ],
)


SMALL = {"sizes": (3, 9, 12, 5, 7)}
NEVER = {"when": "never"}
# The personal step is the same for all. Some tests take it, and not on the slowest path.
STEP = {"linear": {"when": "end"}, "net": {"when": "end"}, "mlp": NEVER}


def made(name: str) -> Algorithm:
    return ALGORITHMS[name](**QUICK.get(name, {}))


def run(name: str, module: str, data_options: dict | None = None, **settings: object) -> Run:
    """Two rounds: in the second, clients act on what the first has left."""
    of = task(module, **SMALL, **(data_options or {}))
    return pagefl.run(task=of, algorithm=made(name), **{"rounds": 2, "personal": NEVER, **settings})


@cache
def reference(name: str, module: str) -> Run:
    return run(name, module, personal=STEP[module])


def assert_same_bits(one: Run, other: Run) -> None:
    assert {n: t.numpy().tobytes() for n, t in one.state.items()} == {
        n: t.numpy().tobytes() for n, t in other.state.items()
    }
    assert timeless(one.rounds) == timeless(other.rounds)
    assert one.client_rounds == other.client_rounds


def timeless(rounds: list[dict]) -> list[dict]:
    return [{name: value for name, value in entry.items() if name != "seconds"} for entry in rounds]


def assert_close(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@every_case
def test_same_spec_same_bits(name, module):
    assert_same_bits(reference(name, module), run(name, module, personal=STEP[module]))


@every_case
def test_workers_change_no_bit(name, module):
    assert_same_bits(run(name, module, chunk=2), run(name, module, chunk=2, workers=2))


@every_case
def test_chunks_agree_to_rounding(name, module):
    whole = run(name, module, chunk=5).state
    part = run(name, module, chunk=2).state
    for key, value in whole.items():
        assert_close(part[key], value)


@every_case
def test_resume_is_exact(name, module, tmp_path):
    """Some clients have a state, others wait; or all of them train, and take personal steps on the way."""
    some = {"participation": 0.4, "personal": NEVER}
    options = {"personal": {"when": 2}} if module == "net" else some
    straight = run(name, module, rounds=4, out=tmp_path / "straight", **options)
    run(name, module, rounds=2, out=tmp_path / "stopped", **options)
    of = task(module, **SMALL)
    resumed = pagefl.resume(tmp_path / "stopped", task=of, algorithm=made(name), rounds=4)
    assert_same_bits(straight, resumed)


@every_case
def test_no_test_label_reaches_training(name, module):
    """P5: with noise for test labels every trained tensor is the same, bit for bit, and every test score is
    not."""
    clean, noisy = reference(name, module), run(name, module, {"flip": True}, personal=STEP[module])
    for key, value in trained_part(clean.state).items():
        assert torch.equal(value, noisy.state[key]), key
    assert clean.rounds[-1]["local_loss"] != noisy.rounds[-1]["local_loss"]
    assert clean.rounds[-1]["global_loss"] != noisy.rounds[-1]["global_loss"]


@every_case
def test_algorithm_keeps_nothing_to_itself(name, module):
    algorithm = made(name)
    before = copy.deepcopy(vars(algorithm))
    pagefl.run(task=task(module, **SMALL), algorithm=algorithm, rounds=2, personal=NEVER)
    assert vars(algorithm) == before == asdict(algorithm)


@every_case
def test_absent_clients_wait_untouched(name, module):
    one = run(name, module, rounds=1, participation=0.4)
    trained = one.clients.query("round == 1").trained.to_numpy(copy=True)
    assert trained.sum() == 2
    first = task(module).fresh_module(0)
    row = Layout(first).row(first)
    for key, value in made(name).client_state(row, Layout(first)).items():
        assert torch.equal(one.state[f"kept.{key}"][~trained], value.expand(3, *value.shape))
    assert torch.equal(one.state["clients.personal"][~trained], row.expand(3, -1))
    assert not torch.equal(one.state["clients.personal"][trained], row.expand(2, -1))


@every_case
def test_permuted_clients_permute_results(name, module, monkeypatch):
    """Each client keeps its own random stream, so only the order of sums may differ."""
    order = [3, 0, 4, 1, 2]
    own = data(**SMALL)
    pairs = {role: [getattr(own, role).client(i) for i in range(5)] for role in ("train", "test")}
    public = (torch.cat([own.game.x, own.server_test.x]), torch.cat([own.game.y, own.server_test.y]))

    def permuted(order: list[int]) -> Run:
        key = rng.key
        # streams whose last name is the client's place: give them its identity
        of_clients = ("batches", "passes", "part")
        moved = lambda seed, *n: key(seed, *n[:-1], order[n[-1]]) if n[0] in of_clients else key(seed, *n)  # noqa: E731
        monkeypatch.setattr(rng, "key", moved)
        shuffled = FederatedData(
            [pairs["train"][i] for i in order], [pairs["test"][i] for i in order], public
        )
        of = Task("permuted", MODULES[module], shuffled, SETTINGS)
        result = pagefl.run(task=of, algorithm=made(name), rounds=2, chunk=2, personal=NEVER)
        monkeypatch.undo()
        return result

    straight, shuffled = permuted([0, 1, 2, 3, 4]), permuted(order)
    assert_close(shuffled.state["server.model"], straight.state["server.model"])
    assert_close(shuffled.state["clients.personal"], straight.state["clients.personal"][order])


@every_case
def test_a_lone_client_is_its_own_federation(name, module):
    """Where the server averages, the shared model is what the client uploaded; where it does not, nothing
    blows up.
    """
    alone = Task("alone", MODULES[module], data(sizes=(17,), single_class=None), SETTINGS)
    federation = Federation.of_task(alone, made(name), Settings(**SETTINGS))
    for round in range(1, 4):
        federation.train(round, np.array([0]), np.array([0.3]), np.array([2]))
        federation.aggregate(np.array([0]), np.ones(1))
    assert bool(torch.isfinite(federation.shared["model"]).all())
    if federation.uploads and ALGORITHMS[name].aggregate is Algorithm.aggregate:
        assert torch.equal(federation.shared["model"], federation.uploads["model"][0])


@every_case
def test_nothing_but_uploads_reaches_the_server(name, module):
    """P4: with noise in all that clients keep to themselves, the server comes to the same state."""

    def after(spoil: bool) -> dict[str, torch.Tensor]:
        federation = Federation.of_task(task(module, **SMALL), made(name), Settings(**SETTINGS))
        federation.train(1, np.arange(5), np.full(5, 0.3), np.full(5, 2))
        if spoil:
            uploads = list(federation.uploads.values())
            for own in (federation.personal, *federation.kept.values()):
                if all(own is not upload for upload in uploads):  # FedAvg's personal model is its upload
                    own.fill_(torch.nan)
        federation.aggregate(np.arange(5), np.full(5, 0.2))
        return federation.shared

    clean, spoiled = after(False), after(True)
    assert all(torch.equal(value, spoiled[key]) for key, value in clean.items())
