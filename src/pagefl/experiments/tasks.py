"""The named tasks and their defaults, most of them the paper's. To add a task, add an entry to NAMED."""

from collections.abc import Mapping
from math import inf
from typing import Any, NamedTuple

from pagefl.data import cifar10, cifar100, femnist, mnist, shakespeare, tiny_imagenet
from pagefl.data.originals import Original

from .builders import (
    Builder,
    cnn_task,
    digits_task,
    femnist_writers,
    flgo_partition,
    images_task,
    leaf_folder,
    merged_images_task,
    patches_task,
    pfllib_folder,
    shakespeare_mlp,
    shakespeare_roles,
    synthetic,
    synthetic_mlp,
    variant,
)
from .defaults import Number, players_within, ranges_around


class Small(NamedTuple):
    """The task NAME-small: the same at a size that a laptop trains in minutes."""

    task: Mapping[str, Any]  # defaults of the task's own settings
    run: Mapping[str, Number]  # defaults of the run


class NamedTask(NamedTuple):
    build: Builder
    run: Mapping[str, Number]  # defaults of the run
    players: Mapping[str, Mapping[str, Number]]  # defaults of players, by their names
    original: Original | None = None  # the files that it reads; None if its data are generated
    small: Small | None = None
    logistic: bool = False  # its model has no body, which some algorithms need
    seeds: tuple[int, ...] = (0, 1, 2)  # in the tables at laptop scale


SYNTHETIC = {"lr": 0.1, "epochs": 20, "batch_size": 5, "weight_decay": 1e-5, "clip": 10.0}
SYNTHETIC |= {"rounds": 1000, "reward_penalty": 1e-5}
SYNTHETIC_PLAYERS = players_within(1e-3, 0.1, critic_lr=5e-3, actor_lr=5e-4, tau=5e-3)
PATCHES = {"lr": 1.0, "epochs": 1, "batch_size": 10, "weight_decay": 1e-4, "clip": 10.0, "rounds": 200}
REAL = {"weight_decay": 1e-4, "clip": 10.0, "rounds": 1000, "reward_penalty": 0.0, "look": 1000}
CHARACTERS = {**REAL, "lr": 1.0, "epochs": 1, "batch_size": 32, "rounds": 150, "participation": 0.2}
RESNET = {**REAL, "lr": 0.1, "epochs": 1, "batch_size": 32, "rounds": 300}
PFLLIB = {"lr": 0.005, "epochs": 1, "batch_size": 10, "weight_decay": 0.0, "clip": inf, "rounds": 150}
DIGITS = {"lr": 0.1, "epochs": 5, "batch_size": 10, "rounds": 50}
NAMED = {
    "synthetic": NamedTask(synthetic, SYNTHETIC, SYNTHETIC_PLAYERS, logistic=True),
    "synthetic-mlp": NamedTask(synthetic_mlp, SYNTHETIC, SYNTHETIC_PLAYERS),
    "cifar100": NamedTask(
        variant(
            images_task,
            "CIFAR-100 over clients whose mix of classes is Dir(delta), ResNet-18 with GroupNorm.\n\n"
            "Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.",
            cifar100.CIFAR100,
            cifar100.CLASSES,
            augment=True,
        ),
        {**REAL, "lr": 0.2, "epochs": 5, "batch_size": 32},
        players_within(1e-2, 0.2, critic_lr=1e-3, actor_lr=1e-4, tau=1e-2),
        cifar100.CIFAR100,
        Small(
            {"clients": 20, "per_client": 500, "width": 16},
            {"rounds": 40, "lr": 0.05, "epochs": 2},
        ),
    ),
    "tiny-imagenet": NamedTask(
        variant(
            images_task,
            "Tiny-ImageNet over clients whose mix of 200 classes is Dir(delta), ResNet-18 with GroupNorm.\n\n"
            "Le, Yang, Tiny ImageNet Visual Recognition Challenge, 2015.",
            tiny_imagenet.TINY_IMAGENET,
            tiny_imagenet.CLASSES,
            per_client=1000,
        ),
        {**REAL, "lr": 0.1, "epochs": 20, "batch_size": 128},
        players_within(1e-3, 0.1, critic_lr=5e-2, actor_lr=5e-3, tau=5e-2),
        tiny_imagenet.TINY_IMAGENET,
        Small(
            {"clients": 20, "per_client": 500, "width": 8},
            {"rounds": 40, "lr": 0.05, "epochs": 2, "batch_size": 32},
        ),
    ),
    "cifar100-patches": NamedTask(
        variant(
            patches_task,
            "CIFAR-100 over clients whose mix of classes is Dir(delta), logistic regression on fixed patch "
            "features.\n\n"
            "The features are those of Coates, Lee, Ng, An Analysis of Single-Layer Networks, AISTATS 2011.",
            cifar100.CIFAR100,
            cifar100.CLASSES,
        ),
        PATCHES,
        ranges_around(PATCHES),
        cifar100.CIFAR100,
        logistic=True,
    ),
    "tiny-imagenet-patches": NamedTask(
        variant(
            patches_task,
            "Tiny-ImageNet over clients whose mix of 200 classes is Dir(delta), logistic regression on fixed "
            "patch features.\n\n"
            "The features are those of Coates, Lee, Ng, An Analysis of Single-Layer Networks, AISTATS 2011.",
            tiny_imagenet.TINY_IMAGENET,
            tiny_imagenet.CLASSES,
        ),
        PATCHES,
        ranges_around(PATCHES),
        tiny_imagenet.TINY_IMAGENET,
        logistic=True,
    ),
    "shakespeare": NamedTask(
        shakespeare_roles,
        {**REAL, "lr": 1.0, "epochs": 20, "batch_size": 32},
        players_within(1e-2, 1.0, critic_lr=1e-3, actor_lr=1e-4, tau=1e-3),
        shakespeare.SHAKESPEARE,
        Small(
            {"clients": 20, "per_client": 400, "hidden": 64},
            {"rounds": 30, "epochs": 5},
        ),
    ),
    "shakespeare-mlp": NamedTask(
        shakespeare_mlp, CHARACTERS, ranges_around(CHARACTERS), shakespeare.SHAKESPEARE
    ),
    "cifar100-resnet": NamedTask(
        variant(
            images_task,
            "CIFAR-100 over clients whose mix of classes is Dir(delta), ResNet-18 with a quarter of its "
            "channels.\n\n"
            "Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.",
            cifar100.CIFAR100,
            cifar100.CLASSES,
            augment=True,
            width=16,
        ),
        RESNET,
        ranges_around(RESNET),
        cifar100.CIFAR100,
        seeds=(0,),
    ),
    "cifar100-cnn": NamedTask(
        variant(
            merged_images_task,
            "CIFAR-100 as in PFLlib's benchmark: classes divided by Dir(delta), a CNN of four layers.\n\n"
            "Zhang et al., PFLlib: A Personalized Federated Learning Library and Benchmark, JMLR 2025.",
            cifar100.CIFAR100,
            cifar100.CLASSES,
        ),
        PFLLIB,
        ranges_around(PFLLIB),
        cifar100.CIFAR100,
        seeds=(0,),
    ),
    "digits": NamedTask(digits_task, DIGITS, ranges_around(DIGITS)),
}


def _around(build: Builder, run: Mapping[str, Number], original: Original | None = None) -> NamedTask:
    """A task whose players' ranges surround its own lr and epochs."""
    settings = {**REAL, **run}
    return NamedTask(build, settings, ranges_around(settings), original)


_MIX = "over clients whose mix of 10 classes is Dir(delta), the four-layer CNN of FedAvg's paper.\n\n"
_CIFAR10 = f"CIFAR-10 {_MIX}Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009."
_MNIST = f"MNIST {_MIX}LeCun et al., Gradient-Based Learning Applied to Document Recognition, 1998."
_FASHION = f"Fashion-MNIST {_MIX}Xiao et al., Fashion-MNIST: a Novel Image Dataset, 2017."
_CNN: Mapping[str, Number] = {"rounds": 200, "lr": 0.05, "epochs": 2, "batch_size": 32}
NAMED |= {
    "cifar10": _around(
        variant(cnn_task, _CIFAR10, cifar10.CIFAR10, cifar10.CLASSES, 3, 32), _CNN, cifar10.CIFAR10
    ),
    "mnist": _around(
        variant(cnn_task, _MNIST, mnist.MNIST, mnist.CLASSES, 1, mnist.SIDE, per_client=600),
        _CNN,
        mnist.MNIST,
    ),
    "fashion-mnist": _around(
        variant(cnn_task, _FASHION, mnist.FASHION_MNIST, mnist.CLASSES, 1, mnist.SIDE, per_client=600),
        _CNN,
        mnist.FASHION_MNIST,
    ),
    "femnist": _around(femnist_writers, _CNN, femnist.FEMNIST),
    "pfllib": _around(pfllib_folder, {**_CNN, "lr": 0.005, "epochs": 1, "batch_size": 10}),  # as in PFLlib
    "flgo": _around(flgo_partition, _CNN),
    "leaf": _around(leaf_folder, _CNN),
}


def _small(task: NamedTask, changed: Small) -> NamedTask:
    title = (task.build.__doc__ or "").partition("\n")[0].removesuffix(".")
    build = variant(task.build, f"{title}, at a laptop's size.", **changed.task)
    return NamedTask(build, {**task.run, **changed.run}, task.players, task.original)


TASKS: dict[str, NamedTask] = {}
for _name, _named in NAMED.items():
    TASKS[_name] = _named
    if _named.small:
        TASKS[f"{_name}-small"] = _small(_named, _named.small)
BUILDERS = {name: task.build for name, task in TASKS.items()}


def players_of(task: str, run: Mapping[str, Number]) -> Mapping[str, Mapping[str, Number]]:
    """Defaults of players on a task. On a user's own task they follow the lr and epochs of the run."""
    return TASKS[task].players if task in TASKS else ranges_around(run)
