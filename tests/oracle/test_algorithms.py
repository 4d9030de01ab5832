"""Eight algorithms against their papers' pseudo-code: one client after the other, plain torch, double
precision.

A model is the vector of its parameters, as in the papers. Only the order of the examples is taken from the
engine's random streams. Hyper-parameters are such that every term matters, and the clip is active in some
steps and not in others.
"""

import functools
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest
import torch
from federations import SETTINGS, Federation, data, linear, mlp, net, planned
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

from pagefl.algorithms.ditto import Ditto
from pagefl.algorithms.fedala import FedAla
from pagefl.algorithms.feddyn import FedDyn
from pagefl.algorithms.fedprox import FedProx
from pagefl.algorithms.fedrecon import FedRecon
from pagefl.algorithms.fedrod import FedRod
from pagefl.algorithms.pfedme import PFedMe
from pagefl.algorithms.scaffold import Scaffold
from pagefl.core import rng
from pagefl.core.training.batches import draw
from pagefl.core.training.linear import LinearModel
from pagefl.core.training.model import RowModel, StackedModel
from pagefl.core.training.stack import Training

pytestmark = pytest.mark.xdist_group("oracle of algorithms")  # one worker keeps the expected states
SEED = 5
LR = [0.3, 0.05, 0.1, 0.5, 0.2]
EPOCHS = [4, 1, 3, 2, 7]
CLIENTS = [(x.double(), y) for x, y in map(data().train.client, range(5))]
SIZES = [len(y) for _, y in CLIENTS]
N, MEAN_SIZE = len(SIZES), sum(SIZES) / len(SIZES)
FULL = tuple((0, 1, 2, 3, 4) for _ in range(3))
PARTIAL = ((0, 2, 3), (1, 2, 4), (0, 1, 3))

Rounds = tuple[tuple[int, ...], ...]
Expected = dict[str, Tensor]


def batches(
    round: int, i: int, epochs: int, stream: str = "batches", call: int = 0, pool: Tensor | None = None
) -> Iterator:
    """Client i's examples in the engine's order: a stream for each round, client and call; of a `pool` or of
    all.
    """
    pool = torch.arange(SIZES[i]) if pool is None else pool
    key = np.array([rng.key(SEED, stream, round, call, i)], np.uint64)
    positions, counts, _ = draw(key, np.array([len(pool)]), np.array([epochs]), SETTINGS["batch_size"])
    x, y = CLIENTS[i]
    for batch, count in zip(positions[0], counts[0], strict=True):
        chosen = pool[torch.from_numpy(batch[:count]).long()]
        yield x[chosen], y[chosen]


def shuffled(round: int, i: int) -> Tensor:
    """The order in which client i's data are cut into parts in this round."""
    key = np.array([rng.key(SEED, "part", round, i)], np.uint64)
    return torch.from_numpy(draw(key, np.array([SIZES[i]]), np.array([1]), SIZES[i]).positions[0, 0]).long()


def part_size(share: float, i: int) -> int:
    return round(share * SIZES[i])


def loss(module: nn.Module, w: Tensor, x: Tensor, y: Tensor, offset: Tensor | float = 0.0) -> Tensor:
    vector_to_parameters(w, module.parameters())
    return cross_entropy(module(x) + offset, y)


def gradient(module: nn.Module, w: Tensor, x: Tensor, y: Tensor, offset: Tensor | float = 0.0) -> Tensor:
    return parameters_to_vector(torch.autograd.grad(loss(module, w, x, y, offset), list(module.parameters())))


def step(w: Tensor, direction: Tensor, lr: float) -> Tensor:
    parameter = nn.Parameter(w.clone())
    parameter.grad = direction.clone()
    clip_grad_norm_(parameter, SETTINGS["clip"])
    torch.optim.SGD([parameter], lr, weight_decay=SETTINGS["weight_decay"]).step()
    return parameter.detach()


def average(models: list[Tensor], ids: Iterable[int]) -> Tensor:
    ids = list(ids)
    return sum(SIZES[i] / sum(SIZES[j] for j in ids) * models[i] for i in ids)


def body_width(module: nn.Module) -> int:
    """The parameters before the last layer."""
    last = [layer for layer in module.modules() if isinstance(layer, nn.Linear)][-1]
    return sum(p.numel() for p in module.parameters()) - sum(p.numel() for p in last.parameters())


def fedprox(module: nn.Module, first: Tensor, rounds: Rounds, mu: float) -> Expected:
    """Li et al. 2020, Algorithm 2: h(w; W) = F(w) + mu / 2 |w - W|^2."""
    server, personal = first, [first] * N
    for round, ids in enumerate(rounds, 1):
        for i in ids:
            w = server
            for x, y in batches(round, i, EPOCHS[i]):
                w = step(w, gradient(module, w, x, y) + mu * (w - server), LR[i])
            personal[i] = w
        server = average(personal, ids)
    return {"server.model": server, "clients.personal": torch.stack(personal)}


def scaffold(
    module: nn.Module, first: Tensor, rounds: Rounds, fresh: float = 1.0, bounded: bool = False
) -> Expected:
    """Karimireddy et al. 2020, Algorithm 1, option II; a change of control counts by the client's data.

    Guarded, a correction is shortened on ways that are longer than the (lower) median way of the round
    before.
    """
    server, personal = first, [first] * N
    control, controls, usual = torch.zeros_like(first), [torch.zeros_like(first)] * N, 0.0
    for round, ids in enumerate(rounds, 1):
        change, ways = torch.zeros_like(first), []
        for i in ids:
            mine = list(batches(round, i, EPOCHS[i]))
            ways.append(len(mine) * LR[i])
            correction = (control - controls[i]) * (min(1.0, usual / ways[-1]) if bounded else 1.0)
            w = server
            for x, y in mine:
                w = step(w, gradient(module, w, x, y) + correction, LR[i])
            measured = (server - w) / ways[-1] - correction
            new = controls[i] + fresh * (measured - controls[i])
            change += SIZES[i] / MEAN_SIZE * (new - controls[i])
            controls[i], personal[i] = new, w
        server, control, usual = (
            average(personal, ids),
            control + change / N,
            sorted(ways)[(len(ways) - 1) // 2],
        )
    return {
        "server.model": server,
        "server.control": control,
        **({"server.length": torch.tensor([usual]).double()} if bounded else {}),
        "kept.control": torch.stack(controls),
        "clients.personal": torch.stack(personal),
    }


def feddyn(module: nn.Module, first: Tensor, rounds: Rounds, alpha: float) -> Expected:
    """Acar et al. 2021, Algorithm 1, in the form of its authors' program: the dual is alpha_i times what a
    client moved.
    """
    server, personal = first, [first] * N
    moved = [torch.zeros_like(first)] * N
    for round, ids in enumerate(rounds, 1):
        for i in ids:
            alpha_i = alpha / (SIZES[i] / MEAN_SIZE)
            w = server
            for x, y in batches(round, i, EPOCHS[i]):
                w = step(w, gradient(module, w, x, y) + alpha_i * (w - server + moved[i]), LR[i])
            personal[i], moved[i] = w, moved[i] + w - server
        server = average(personal, ids) + sum(moved) / N
    return {
        "server.model": server,
        "server.moved": sum(moved) / N,
        "kept.moved": torch.stack(moved),
        "clients.personal": torch.stack(personal),
    }


def pfedme(
    module: nn.Module,
    first: Tensor,
    rounds: Rounds,
    lam: float,
    beta: float,
    inner_steps: int,
    personal_lr: float,
) -> Expected:
    """Dinh et al. 2020, Algorithm 1: theta is the proximal point of w on the batch, and w follows theta."""
    server, personal, uploads = first, [first] * N, [first] * N
    for round, ids in enumerate(rounds, 1):
        for i in ids:
            w = theta = server
            for x, y in batches(round, i, EPOCHS[i]):
                for _ in range(inner_steps):
                    theta = step(theta, gradient(module, theta, x, y) + lam * (theta - w), personal_lr)
                w = w - LR[i] * lam * (w - theta)
            personal[i], uploads[i] = theta, w
        server = (1 - beta) * server + beta * average(uploads, ids)
    return {"server.model": server, "clients.personal": torch.stack(personal)}


def ditto(module: nn.Module, first: Tensor, rounds: Rounds, lam: float, personal_epochs: int) -> Expected:
    """Li et al. 2021, Algorithm 1: FedAvg, and beside it a personal v with h(v; W) = F(v) + lam / 2 |v -
    W|^2.
    """
    server, personal, uploads = first, [first] * N, [first] * N
    for round, ids in enumerate(rounds, 1):
        for i in ids:
            w = server
            for x, y in batches(round, i, EPOCHS[i]):
                w = step(w, gradient(module, w, x, y), LR[i])
            v = personal[i]
            for x, y in batches(round, i, personal_epochs, call=1):
                v = step(v, gradient(module, v, x, y) + lam * (v - server), LR[i])
            uploads[i], personal[i] = w, v
        server = average(uploads, ids)
    return {
        "server.model": server,
        "kept.personal": torch.stack(personal),
        "clients.personal": torch.stack(personal),
    }


def fedrod(module: nn.Module, first: Tensor, rounds: Rounds) -> Expected:
    """Chen, Chao 2022, Fed-ROD (linear): a generic head by balanced softmax, a personal one on top by the
    empirical risk.
    """
    cut = body_width(module)
    layers = list(module) if cut else [module]
    server, heads = first, [torch.zeros_like(first[cut:])] * N
    personal, uploads = [first] * N, [first] * N
    for round, ids in enumerate(rounds, 1):
        for i in ids:
            counts = CLIENTS[i][1].bincount(minlength=layers[-1].out_features)
            w, head = server, heads[i]
            for x, y in batches(round, i, EPOCHS[i]):
                vector_to_parameters(w, module.parameters())
                features = nn.Sequential(*layers[:-1])(x).detach()
                generic = layers[-1](features).detach()
                head.requires_grad_()
                weight, bias = (
                    head[: layers[-1].weight.numel()].view_as(layers[-1].weight),
                    head[-len(counts) :],
                )
                risk = cross_entropy(generic + features @ weight.T + bias, y)
                head = step(head.detach(), torch.autograd.grad(risk, head)[0], LR[i])
                w = step(w, gradient(module, w, x, y, offset=counts.double().log()), LR[i])
            heads[i], uploads[i], personal[i] = head, w, torch.cat([w[:cut], w[cut:] + head])
        server = average(uploads, ids)
    return {
        "server.model": server,
        "kept.head": torch.stack(heads),
        "clients.personal": torch.stack(personal),
    }


def fedrecon(
    module: nn.Module,
    first: Tensor,
    rounds: Rounds,
    reconstruction_epochs: int,
    support: float,
    server_lr: float,
) -> Expected:
    """Singhal et al. 2021, Algorithm 1: the head is rebuilt on the support set, then the body learns on the
    query set.
    """
    cut = body_width(module)
    server, personal = first, [first] * N
    for round, ids in enumerate(rounds, 1):
        for i in ids:
            order = shuffled(round, i)
            few = max(1, part_size(support, i))  # neither set is ever empty, and they share no example
            body, head = server[:cut], first[cut:]
            for x, y in batches(round, i, reconstruction_epochs, pool=order[:few]):
                head = step(head, gradient(module, torch.cat([body, head]), x, y)[cut:], LR[i])
            for x, y in batches(round, i, EPOCHS[i], call=1, pool=order[few:]):
                body = step(body, gradient(module, torch.cat([body, head]), x, y)[:cut], LR[i])
            personal[i] = torch.cat([body, head])
        body = server[:cut] + server_lr * (average(personal, ids)[:cut] - server[:cut])
        server = torch.cat([body, first[cut:]])
    return {"server.model": server, "clients.personal": torch.stack(personal)}


def fedala(
    module: nn.Module, first: Tensor, rounds: Rounds, eta: float, share: float, layers: int, tolerance: float
) -> Expected:
    """Zhang et al. 2023, Algorithm 1 and PFLlib's ALA: a client starts from W and its own, mixed weight by
    weight.
    """
    assert layers == 1
    cut = body_width(module)
    server, own = first, [first] * N
    mix, started = [torch.ones_like(first[cut:])] * N, [False] * N
    for round, ids in enumerate(rounds, 1):
        for i in ids:
            w = server
            if not torch.equal(own[i], server):
                news = server[cut:] - own[i][cut:]
                pool = shuffled(round, i)[: part_size(share, i)]
                losses: list[float] = []
                while not losses or (not started[i] and len(losses) < 100 and not settled(losses, tolerance)):
                    for x, y in batches(round, i, 1, "passes", call=len(losses), pool=pool):
                        w = torch.cat([server[:cut], own[i][cut:] + news * mix[i]])
                        last = loss(module, w, x, y).item()
                        mix[i] = (mix[i] - eta * gradient(module, w, x, y)[cut:] * news).clamp(0, 1)
                    losses.append(last)
                started[i] = True
                w = torch.cat([server[:cut], own[i][cut:] + news * mix[i]])
            for x, y in batches(round, i, EPOCHS[i]):
                w = step(w, gradient(module, w, x, y), LR[i])
            own[i] = w
        server = average(own, ids)
    return {
        "server.model": server,
        "kept.model": torch.stack(own),
        "kept.mix": torch.stack([torch.cat([torch.ones_like(first[:cut]), m]) for m in mix]),
        "kept.started": torch.tensor(started).double()[:, None],
        "clients.personal": torch.stack(own),
    }


def settled(losses: list[float], tolerance: float) -> bool:
    return len(losses) > 10 and np.std(losses[-10:]) < tolerance


ORACLES: dict[str, tuple[Callable[..., Expected], type, dict[str, float]]] = {
    "fedprox": (fedprox, FedProx, {"mu": 0.5}),
    "scaffold": (scaffold, Scaffold, {}),
    "scaffold-guarded": (scaffold, Scaffold, {"fresh": 0.3, "bounded": True}),
    "feddyn": (feddyn, FedDyn, {"alpha": 0.3}),
    "pfedme": (pfedme, PFedMe, {"lam": 2.0, "beta": 0.7, "inner_steps": 3, "personal_lr": 0.05}),
    "ditto": (ditto, Ditto, {"lam": 0.7, "personal_epochs": 3}),
    "fedrod": (fedrod, FedRod, {}),
    "fedrecon": (fedrecon, FedRecon, {"reconstruction_epochs": 2, "support": 0.1, "server_lr": 0.6}),
    "fedala": (fedala, FedAla, {"eta": 0.2, "share": 0.8, "layers": 1, "tolerance": 1.0}),
}
# Chunks differ so that a client is seen alone, beside another and among all.
PATHS = {
    "fused-linear": (LinearModel, linear, 5),
    "stacked-linear": (StackedModel, linear, 2),
    "rows-linear": (RowModel, linear, 1),
    "stacked-mlp": (StackedModel, mlp, 5),
    "rows-mlp": (RowModel, mlp, 1),
    "plan-net": (planned, net, 2),
}
ROUNDS = {"full": FULL, "partial": PARTIAL}
# On most paths some clients are away, and so some wait; on one of a kind all take part.
WHOLE = ("fused-linear", "plan-net")
# Linear models have a path of their own.
BESIDE = ("stacked-linear", "rows-linear")
CASES = [
    (name, path, who)
    for name in ORACLES
    for path in PATHS
    for who in ROUNDS
    if (name != "fedrecon" or not path.endswith("linear")) and (who == "partial" or path in WHOLE)
]
# FedALA makes many passes, one batch after the other
LONG = [(name, path, who) for name, path, who in CASES if name == "fedala" or path in BESIDE]


def fresh(make: Callable[[], nn.Module]) -> nn.Module:
    with rng.torch_stream(1, "module"):
        return make()


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
    training = Training(SEED, 0.1, SETTINGS["batch_size"], SETTINGS["weight_decay"], SETTINGS["clip"])
    _, algorithm, options = ORACLES[name]
    row = model.layout.row(fresh(make))
    federation = Federation.of_model(model, algorithm(**options), data(), training, row=row, chunk=chunk)
    for round, ids in enumerate(rounds, 1):
        chosen = np.array(ids)
        federation.train(round, chosen, np.array(LR)[chosen], np.array(EPOCHS)[chosen])
        sizes = np.array(SIZES)[chosen]
        federation.aggregate(chosen, sizes / sizes.sum())

    state, expected = federation.state(), expected_state(name, make, rounds)
    assert state.keys() == expected.keys()
    for key, value in expected.items():
        # The engine rounds to float32, by another 1e-7 on every CPU; a control divides that by a short way.
        torch.testing.assert_close(
            state[key].double(), value, rtol=1e-4, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}"
        )
