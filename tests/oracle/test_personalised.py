"""FedPer, FedRep, FedBABU, APFL and Per-FedAvg against their papers' pseudo-code, and where they must become
something simpler.

The plain loop is that of test_algorithms.py: one client after the other, in double precision.
"""

import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from federations import CLASSES, FEATURES, MODULES, SETTINGS, Federation, client, data, linear, mlp, task
from oracle.test_algorithms import (
    EPOCHS,
    FULL,
    LR,
    PARTIAL,
    PATHS,
    SEED,
    SIZES,
    WHOLE,
    Expected,
    N,
    Rounds,
    average,
    batches,
    body_width,
    fresh,
    gradient,
    step,
)
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

import pagefl
from pagefl import Algorithm, FederatedData, Local, Task
from pagefl.algorithms.apfl import Apfl
from pagefl.algorithms.fedavg import FedAvg
from pagefl.algorithms.fedbabu import FedBabu
from pagefl.algorithms.fedper import FedPer
from pagefl.algorithms.fedrep import FedRep
from pagefl.algorithms.local import LocalOnly
from pagefl.algorithms.perfedavg import PerFedAvg
from pagefl.core import rng
from pagefl.core.layout import Layout
from pagefl.core.training.batches import draw
from pagefl.core.training.model import StackedModel
from pagefl.core.training.stack import Training

pytestmark = pytest.mark.xdist_group("oracle of personalised algorithms")
TRAINING = Training(SEED, 0.1, SETTINGS["batch_size"], SETTINGS["weight_decay"], SETTINGS["clip"])


def fedper(module: nn.Module, first: Tensor, rounds: Rounds) -> Expected:
    """Arivazhagan et al. 2019, Algorithms 1 and 2: base layers are averaged, personal layers stay."""
    cut = body_width(module)
    body, heads, personal = first[:cut], [first[cut:]] * N, [first] * N
    for round, ids in enumerate(rounds, 1):
        for i in ids:
            w = torch.cat([body, heads[i]])
            for x, y in batches(round, i, EPOCHS[i]):
                w = step(w, gradient(module, w, x, y), LR[i])
            personal[i], heads[i] = w, w[cut:]
        body = average(personal, ids)[:cut]
    return split_state(body, first[cut:], heads, personal)


def fedrep(module: nn.Module, first: Tensor, rounds: Rounds, head_epochs: int) -> Expected:
    """Collins et al. 2021, Algorithm 1: many updates of the head, then those of the representation."""
    cut = body_width(module)
    shared, heads, personal = first[:cut], [first[cut:]] * N, [first] * N
    for round, ids in enumerate(rounds, 1):
        for i in ids:
            body, head = shared, heads[i]
            for x, y in batches(round, i, head_epochs):
                head = step(head, gradient(module, torch.cat([body, head]), x, y)[cut:], LR[i])
            for x, y in batches(round, i, EPOCHS[i], call=1):
                body = step(body, gradient(module, torch.cat([body, head]), x, y)[:cut], LR[i])
            personal[i], heads[i] = torch.cat([body, head]), head
        shared = average(personal, ids)[:cut]
    return split_state(shared, first[cut:], heads, personal)


def split_state(body: Tensor, first_head: Tensor, heads: list[Tensor], personal: list[Tensor]) -> Expected:
    return {
        "server.model": torch.cat([body, first_head]),
        "kept.head": torch.stack(heads),
        "clients.personal": torch.stack(personal),
    }


def fedbabu(
    module: nn.Module, first: Tensor, rounds: Rounds, tune_epochs: int, tune: str = "model"
) -> Expected:
    """Oh et al. 2022, Algorithm 1: the body alone is trained and averaged; the rest is fine-tuning."""
    cut = body_width(module)
    tuned = {"model": slice(0, None), "head": slice(cut, None), "body": slice(0, cut)}[tune]
    server, uploads, personal = first, [first] * N, [first] * N
    for round, ids in enumerate(rounds, 1):
        for i in ids:
            w = server.clone()
            for x, y in batches(round, i, EPOCHS[i]):
                w[:cut] = step(w[:cut], gradient(module, w, x, y)[:cut], LR[i])
            uploads[i], w = w, w.clone()
            for x, y in batches(round, i, tune_epochs, call=1):
                w[tuned] = step(w[tuned], gradient(module, w, x, y)[tuned], LR[i])
            personal[i] = w
        server = average(uploads, ids)
    return {"server.model": server, "clients.personal": torch.stack(personal)}


def apfl(module: nn.Module, first: Tensor, rounds: Rounds, alpha: float, adaptive: bool = False) -> Expected:
    """Deng et al. 2020, Algorithm 1; derivatives by v and by alpha are autograd's."""
    server, own, uploads, personal = first, [first] * N, [first] * N, [first] * N
    alphas = [torch.tensor(alpha).double()] * N
    for round, ids in enumerate(rounds, 1):
        for i in ids:
            w, v = server, own[i]
            for t, (x, y) in enumerate(batches(round, i, EPOCHS[i], "passes")):
                by_v, by_alpha = mixed_gradients(module, v, w, alphas[i], x, y)
                w, v = step(w, gradient(module, w, x, y), LR[i]), step(v, by_v, LR[i])
                if adaptive and t == 0:
                    alphas[i] = (alphas[i] - LR[i] * by_alpha).clamp(0, 1)
            uploads[i], own[i], personal[i] = w, v, alphas[i] * v + (1 - alphas[i]) * w
        server = average(uploads, ids)
    return {
        "server.model": server,
        "kept.own": torch.stack(own),
        "kept.alpha": torch.stack(alphas)[:, None],
        "clients.personal": torch.stack(personal),
    }


def mixed_gradients(
    module: nn.Module, v: Tensor, w: Tensor, alpha: Tensor, x: Tensor, y: Tensor
) -> tuple[Tensor, ...]:
    """Of f(alpha v + (1 - alpha) w), by v and by alpha."""
    v, alpha = v.clone().requires_grad_(), alpha.clone().requires_grad_()
    return torch.autograd.grad(functional_loss(module, alpha * v + (1 - alpha) * w, x, y), (v, alpha))


def functional_loss(module: nn.Module, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The loss as a function of the vector itself, so that it can be differentiated twice."""
    named = dict(module.named_parameters())
    parts = torch.split(w, [p.numel() for p in named.values()])
    values = {name: part.view_as(p) for (name, p), part in zip(named.items(), parts, strict=True)}
    return cross_entropy(torch.func.functional_call(module, values, (x,)), y)


def perfedavg(
    module: nn.Module,
    first: Tensor,
    rounds: Rounds,
    inner_lr: float,
    hessian_free: bool = False,
    delta: float = 0.0,
) -> Expected:
    """Fallah et al. 2020, Algorithm 1, with either approximation of the Hessian term."""
    server, uploads, personal = first, [first] * N, [first] * N
    for round, ids in enumerate(rounds, 1):
        for i in ids:
            w = server
            draws = (batches(round, i, EPOCHS[i], "passes", call=call) for call in range(3))
            for inner, outer, third in zip(*draws, strict=True):
                slope = gradient(module, w - inner_lr * gradient(module, w, *inner), *outer)
                curved = torch.zeros_like(w)
                if hessian_free:
                    ahead, behind = (gradient(module, w + s * delta * slope, *third) for s in (1, -1))
                    curved = (ahead - behind) / (2 * delta)
                w = step(w, slope - inner_lr * curved, LR[i])
            uploads[i] = w
            w = server
            for x, y in batches(round, i, 1):
                w = step(w, gradient(module, w, x, y), inner_lr)
            personal[i] = w
        server = average(uploads, ids)
    return {"server.model": server, "clients.personal": torch.stack(personal)}


ORACLES: dict[str, tuple[Callable[..., Expected], type[Algorithm], dict[str, object]]] = {
    "fedper": (fedper, FedPer, {}),
    "fedrep": (fedrep, FedRep, {"head_epochs": 3}),
    "fedbabu": (fedbabu, FedBabu, {"tune_epochs": 2}),
    "fedbabu-head": (fedbabu, FedBabu, {"tune_epochs": 2, "tune": "head"}),
    "apfl": (apfl, Apfl, {"alpha": 0.3}),
    "apfl-adaptive": (apfl, Apfl, {"alpha": 0.6, "adaptive": True}),
    "perfedavg": (perfedavg, PerFedAvg, {"inner_lr": 0.2}),
    "perfedavg-hf": (perfedavg, PerFedAvg, {"inner_lr": 0.2, "hessian_free": True, "delta": 0.1}),
}
ROUNDS = {"full": FULL, "partial": PARTIAL}
CASES = [
    (name, path, who)
    for name, (_, kind, _) in ORACLES.items()
    for path in ("fused-linear", "stacked-mlp", "rows-mlp", "plan-net")
    for who in ROUNDS
    if not (kind.needs_body and path == "fused-linear") and (who == "partial" or path in WHOLE)
]

# three or four gradients a step, one row after the other
LONG = [case for case in CASES if case[0] == "perfedavg-hf" or case[1] == "rows-mlp"]


@functools.cache
def expected_state(name: str, make: Callable[[], nn.Module], rounds: Rounds) -> Expected:
    oracle, _, options = ORACLES[name]
    module = fresh(make).double()
    return oracle(module, parameters_to_vector(module.parameters()).detach().clone(), rounds, **options)


@pytest.mark.parametrize(
    ("name", "path", "who"),
    [pytest.param(*case, marks=[pytest.mark.slow] if case in LONG else []) for case in CASES],
)
def test_algorithm_is_what_its_paper_says(name, path, who):
    rounds = ROUNDS[who]
    kind, make, chunk = PATHS[path]
    model = kind(fresh(make))
    _, algorithm, options = ORACLES[name]
    row = model.layout.row(fresh(make))
    federation = Federation.of_model(model, algorithm(**options), data(), TRAINING, row=row, chunk=chunk)
    for round, ids in enumerate(rounds, 1):
        chosen = np.array(ids)
        federation.train(round, chosen, np.array(LR)[chosen], np.array(EPOCHS)[chosen])
        sizes = np.array(SIZES)[chosen]
        federation.aggregate(chosen, sizes / sizes.sum())

    state, expected = federation.state(), expected_state(name, make, rounds)
    assert state.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(
            state[key].double(), value, rtol=1e-4, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}"
        )


@pytest.mark.parametrize("algorithm", [FedPer(), FedRep(head_epochs=2)])
def test_the_shared_body_is_judged_with_a_head_of_those_who_judge(algorithm):
    """Clients use the head they keep; the server trains one from the first head, on the game half alone."""
    own, module = data(), fresh(mlp)
    row, cut = Layout(module).row(module), body_width(module)
    federation = Federation.of_model(StackedModel(module), algorithm, own, TRAINING, row=row)
    federation.train(1, np.arange(N), np.array(LR), np.array(EPOCHS))
    federation.aggregate(np.arange(N), np.full(N, 1 / N))
    body = federation.shared["model"][:cut].double()
    module = module.double()

    head = row[cut:].double()
    key = np.array([rng.key(SEED, "batches", 2, 0, 0)], np.uint64)
    x, y = own.game.x.double(), own.game.y
    positions, counts, _ = draw(key, np.array([len(y)]), np.array([1]), SETTINGS["batch_size"])
    for batch, count in zip(positions[0], counts[0], strict=True):
        chosen = torch.from_numpy(batch[:count]).long()
        slope = gradient(module, torch.cat([body, head]), x[chosen], y[chosen])[cut:]
        head = step(head, slope, TRAINING.lr)
    test = own.server_test
    loss = functional_loss(module, torch.cat([body, head]), test.x.double(), test.y).item()
    assert federation.server.evaluate(2, "server_test")["server_test"][0] == pytest.approx(loss, rel=1e-4)

    heads = federation.kept["head"].double()  # a copy: those of before the second round
    losses = federation.train(2, np.arange(N), np.array(LR), np.array(EPOCHS)).before.loss
    for i in range(N):
        x, y = own.test.client(i)
        w = torch.cat([body, heads[i]])
        assert losses[i] == pytest.approx(functional_loss(module, w, x.double(), y).item(), rel=1e-4)


# Identities. With everything in one batch, where methods draw their batches from different streams.
WHOLE = {"batch_size": 40, "epochs": 3}
both_modules = pytest.mark.parametrize("module", ["linear", "mlp"])


def state(algorithm: Algorithm, of: Task, **settings: object) -> dict[str, Tensor]:
    return pagefl.run(task=of, algorithm=algorithm, personal={"when": "never"}, **settings).state


def assert_close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def copies(count: int = 3) -> Task:
    """Clients with the same data."""
    same = [client(17, 1)] * count
    return Task("copies", MODULES["mlp"], FederatedData(same, same, client(60, 200)), SETTINGS)


class Alternating(Algorithm):
    """FedAvg of all layers, in alternation: first the head, then the body."""

    def local(self, clients):
        epochs = torch.full_like(clients.epochs, 2)
        rows = clients.train(clients.sent["model"], columns=clients.layout.head, epochs=epochs)
        rows = clients.train(rows, columns=clients.layout.body)
        return Local(upload={"model": rows}, personal=rows)


@pytest.mark.parametrize(
    ("split", "shared"), [(FedPer(), FedAvg()), (FedRep(head_epochs=2), Alternating())], ids=["per", "rep"]
)
def test_where_all_heads_agree_it_is_fedavg_of_all_layers(split, shared):
    """Equal clients have equal heads, so that those they keep are the mean of all."""
    own, all_layers = state(split, copies(), **WHOLE), state(shared, copies(), **WHOLE)
    assert_close(own["clients.personal"], all_layers["clients.personal"])
    head = own["kept.head"].shape[1]
    assert_close(own["server.model"][:-head], all_layers["server.model"][:-head])
    assert_close(own["kept.head"], all_layers["server.model"][-head:].expand(3, -1))


def test_fedper_alone_is_sgd():
    of = task("mlp", sizes=(17,), single_class=None)
    assert_close(state(FedPer(), of)["clients.personal"], state(FedAvg(), of)["clients.personal"])


@pytest.mark.parametrize(("module", "momentum"), [("mlp", 0.0), ("net", 0.9)])
@pytest.mark.parametrize("algorithm", [FedBabu(tune_epochs=1), FedPer(), FedRep(head_epochs=1)])
def test_the_servers_head_stays_at_its_start(algorithm, module, momentum):
    """To the bit, after many rounds: with weight decay, and with what clients do to their own heads."""
    of = task(module)
    built = of.fresh_module(0)
    layout = Layout(built)
    after = state(algorithm, of, rounds=12, momentum=momentum)["server.model"]
    assert torch.equal(after[layout.head], layout.row(built)[layout.head])
    assert not torch.isclose(after[layout.body], layout.row(built)[layout.body]).all()


def test_fedbabus_shared_model_knows_nothing_of_fine_tuning():
    short, long = (state(FedBabu(tune_epochs=epochs), task("mlp")) for epochs in (1, 4))
    assert torch.equal(short["server.model"], long["server.model"])
    assert not torch.allclose(short["clients.personal"], long["clients.personal"], atol=0.01)


@both_modules
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_apfls_ends_are_fedavg_and_local_training(module, momentum):
    """The paper's convention: alpha is the weight of the client's own model."""
    settings = {**WHOLE, "momentum": momentum}
    shared, alone = (state(Apfl(alpha=alpha), task(module), **settings) for alpha in (0.0, 1.0))
    average_of_all = state(FedAvg(), task(module), **settings)
    assert_close(shared["clients.personal"], average_of_all["clients.personal"])
    local = state(LocalOnly(), task(module), **settings)["clients.personal"]
    assert_close(alone["clients.personal"], local)
    assert not torch.allclose(alone["clients.personal"], shared["clients.personal"], atol=0.01)
    for of in (shared, alone):
        assert_close(of["server.model"], average_of_all["server.model"])


@both_modules
def test_apfl_learns_an_alpha_for_each_client(module):
    learned = state(Apfl(alpha=0.5, adaptive=True), task(module), rounds=6)["kept.alpha"]
    assert ((learned >= 0) & (learned <= 1)).all()
    assert len(learned.unique()) > 1
    assert (state(Apfl(alpha=0.5), task(module), rounds=6)["kept.alpha"] == 0.5).all()


@both_modules
@pytest.mark.parametrize("hessian_free", [False, True])
def test_perfedavg_with_a_tiny_inner_step_shares_fedavgs_model(module, hessian_free):
    meta = PerFedAvg(inner_lr=1e-9, hessian_free=hessian_free)
    average_of_all = state(FedAvg(), task(module), **WHOLE)["server.model"]
    assert_close(state(meta, task(module), **WHOLE)["server.model"], average_of_all)


@pytest.mark.parametrize("make", [linear, mlp])
def test_hessian_free_is_the_gradient_of_the_meta_loss(make):
    """F(w) = f(w - inner_lr * gradient f(w)), differentiated twice by autograd; one step on all data."""
    x, y = client(30, 3)
    of = Task("alone", make, FederatedData([(x, y)], [(x, y)], client(60, 200)), SETTINGS)
    settings = {"rounds": 1, "epochs": 1, "batch_size": 30, "clip": 1e9, "weight_decay": 0.0, "lr": 1.0}
    module = of.fresh_module(0).double()
    first = parameters_to_vector(module.parameters()).detach().requires_grad_()
    slope = torch.autograd.grad(functional_loss(module, first, x.double(), y), first, create_graph=True)[0]
    meta = torch.autograd.grad(functional_loss(module, first - 0.8 * slope, x.double(), y), first)[0]
    moved = [
        first.detach() - state(PerFedAvg(inner_lr=0.8, hessian_free=hf), of, **settings)["server.model"]
        for hf in (True, False)
    ]
    torch.testing.assert_close(moved[0], meta, rtol=1e-2, atol=3e-4)
    assert (moved[1] - meta).norm() > 10 * (moved[0] - meta).norm()  # FO leaves the Hessian out


@pytest.mark.parametrize("algorithm", [FedPer(), FedRep(), FedBabu()])
def test_a_single_layer_is_refused_in_one_sentence(algorithm):
    with pytest.raises(pagefl.UserError, match="needs a model with a body and a head") as refused:
        state(algorithm, Task("flat", linear, data(), SETTINGS))
    assert "\n" not in str(refused.value)


@pytest.mark.slow  # starts workers
@pytest.mark.parametrize("algorithm", [Apfl(), PerFedAvg(hessian_free=True)])
def test_steps_of_an_algorithms_own_draw_dropout_from_named_streams(algorithm):
    def make(chance: float = 0.5) -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Dropout(chance), nn.Linear(5, CLASSES))

    of = Task("dropout", make, data(), SETTINGS)
    first, again, parallel = (state(algorithm, of, rounds=2, workers=count) for count in (1, 1, 2))
    without = state(algorithm, Task("dropout", lambda: make(0.0), data(), SETTINGS), rounds=2)
    assert torch.equal(first["server.model"], again["server.model"])
    assert torch.equal(first["server.model"], parallel["server.model"])
    assert not torch.allclose(first["server.model"], without["server.model"])
