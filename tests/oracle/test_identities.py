"""Where one algorithm must become another: limits that need no second implementation."""

import numpy as np
import pytest
import torch
from federations import CLASSES, FEATURES, SETTINGS, Federation, client, data, linear, task

import pagefl
from pagefl import FederatedData, Task
from pagefl.algorithms.ditto import Ditto
from pagefl.algorithms.fedala import FedAla
from pagefl.algorithms.fedavg import FedAvg
from pagefl.algorithms.feddyn import FedDyn
from pagefl.algorithms.fedprox import FedProx
from pagefl.algorithms.fedrecon import FedRecon
from pagefl.algorithms.fedrod import FedRod
from pagefl.algorithms.local import LocalOnly
from pagefl.algorithms.pfedme import PFedMe
from pagefl.algorithms.scaffold import Scaffold
from pagefl.core.algorithm import Algorithm
from pagefl.core.layout import Layout
from pagefl.core.training.model import StackedModel
from pagefl.core.training.stack import Training

both_modules = pytest.mark.parametrize("module", ["linear", "mlp"])


def state(algorithm: Algorithm, of: Task, **settings: object) -> dict[str, torch.Tensor]:
    return pagefl.run(task=of, algorithm=algorithm, personal={"when": "never"}, **settings).state


def first_row(of: Task) -> torch.Tensor:
    module = of.fresh_module(0)
    return Layout(module).row(module)


def assert_close(one: torch.Tensor, other: torch.Tensor) -> None:
    """Two ways to the same model round differently, and by another amount on every CPU."""
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def assert_same_models(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    for key in ("server.model", "clients.personal"):
        assert_close(one[key], other[key])


@both_modules
def test_fedprox_without_its_term_is_fedavg(module):
    assert_same_models(state(FedProx(mu=0.0), task(module)), state(FedAvg(), task(module)))


@both_modules
def test_feddyn_with_a_tiny_alpha_trains_as_fedavg_at_first(module):
    of = task(module)
    dynamic, plain = state(FedDyn(alpha=1e-8), of, rounds=1), state(FedAvg(), of, rounds=1)
    assert_close(dynamic["clients.personal"], plain["clients.personal"])
    moved = plain["clients.personal"] - first_row(of)
    assert_close(dynamic["server.model"], plain["server.model"] + moved.mean(0))


@both_modules
def test_feddyn_has_a_limit_as_alpha_vanishes(module):
    """Nothing is divided by alpha: the state stays finite, and the same from some alpha on."""
    small, smaller = (state(FedDyn(alpha=alpha), task(module), rounds=5) for alpha in (1e-8, 1e-10))
    for key, value in small.items():
        assert value.isfinite().all()
        assert_close(value, smaller[key])


@both_modules
def test_scaffold_alone_is_sgd(module):
    """A single client's control is the server's, so nothing is left to correct."""
    of = task(module, sizes=(17,), single_class=None)
    alone = state(Scaffold(), of)
    assert_same_models(alone, state(FedAvg(), of))
    assert_close(alone["kept.control"][0], alone["server.control"])
    assert alone["server.control"].norm() > 0.1


@both_modules
def test_ditto_shares_fedavgs_model(module):
    assert_close(state(Ditto(), task(module))["server.model"], state(FedAvg(), task(module))["server.model"])


@both_modules
def test_ditto_without_its_term_is_local_training(module):
    """With everything in one batch, since the two draw their batches from different streams."""
    settings = {"batch_size": 40, "epochs": 3}
    ditto = state(Ditto(lam=0.0, personal_epochs=3), task(module), **settings)
    assert_close(ditto["clients.personal"], state(LocalOnly(), task(module), **settings)["clients.personal"])


@both_modules
def test_pfedme_whose_w_is_theta_is_fedavg_at_the_personal_lr(module):
    """lam * lr = 1 carries w all the way to theta; with a single inner step the proximal term is zero."""
    pfedme = state(PFedMe(lam=4.0, inner_steps=1, personal_lr=0.1), task(module), lr=0.25)
    assert_same_models(pfedme, state(FedAvg(), task(module), lr=0.1))


@both_modules
def test_pfedmes_beta_is_the_servers_step(module):
    """Towards the average of the uploads, which is FedAvg's model here (see above)."""
    of = task(module)
    first, mean = first_row(of), state(FedAvg(), of, lr=0.1, rounds=1)["server.model"]
    for beta in (0.25, 2.0):
        pfedme = PFedMe(lam=4.0, beta=beta, inner_steps=1, personal_lr=0.1)
        assert_close(state(pfedme, of, lr=0.25, rounds=1)["server.model"], first + beta * (mean - first))


@both_modules
def test_fedala_that_mixes_nothing_in_is_fedavg(module):
    ala = state(FedAla(eta=1e-12), task(module))
    assert_same_models(ala, state(FedAvg(), task(module)))
    assert ala["kept.started"].all()


def balanced(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, _ = client(size, seed)
    return x + torch.eye(CLASSES, FEATURES)[torch.arange(size) % CLASSES], torch.arange(size) % CLASSES


@both_modules
def test_fedrod_with_equal_class_counts_shares_fedavgs_model(module):
    """Balanced softmax then adds the same number to every logit."""
    train = [balanced(size, i) for i, size in enumerate((4, 12, 28))]
    splits = FederatedData(train, train, client(60, 200))
    of = Task("balanced", task(module).module, splits, SETTINGS)
    assert_close(state(FedRod(), of)["server.model"], state(FedAvg(), of)["server.model"])


@both_modules
def test_fedrods_shared_model_knows_nothing_of_personal_heads(module):
    of = task(module)
    models, personal = [], []
    for noise in (0.0, 1.0):
        training = Training(0, 0.3, SETTINGS["batch_size"], SETTINGS["weight_decay"], SETTINGS["clip"])
        federation = Federation.of_model(
            StackedModel(of.fresh_module(0)), FedRod(), data(), training, row=first_row(of)
        )
        heads = federation.kept["head"]
        heads += noise * torch.randn(heads.shape, generator=torch.Generator().manual_seed(0))
        for round in (1, 2):
            federation.train(round, np.arange(5), np.full(5, 0.3), np.full(5, 2))
            federation.aggregate(np.arange(5), np.full(5, 0.2))
        models.append(federation.shared["model"])
        personal.append(federation.personal)
    assert torch.equal(*models)
    assert not torch.allclose(*personal, atol=0.1)


def test_fedrecon_refuses_a_single_layer_in_one_sentence():
    with pytest.raises(pagefl.UserError, match="needs a model with a body and a head") as refused:
        state(FedRecon(), Task("flat", linear, data(), SETTINGS))
    assert "\n" not in str(refused.value)
    assert ". " not in str(refused.value)


def test_bounded_scaffold_is_scaffold_where_all_go_equally_far():
    """Equal sizes, lr and epochs: every way is as long, and nothing is bounded."""
    equal = {"sizes": (12, 12, 12), "single_class": None}
    plain, bounded = (
        pagefl.run(task=task("mlp", **equal), algorithm=Scaffold(bounded=bounded), rounds=3)
        for bounded in (False, True)
    )
    torch.testing.assert_close(
        bounded.state["server.model"], plain.state["server.model"], rtol=1e-5, atol=1e-6
    )
