"""The named tasks and their defaults, most of them the paper's. To add a task, add an entry to NAMED."""

from collections.abc import Mapping
from math import inf
from typing import Any, NamedTuple

from pagefl.data import cifar100, shakespeare, tiny_imagenet
from pagefl.data.originals import Original

from .builders import (
    Builder,
    digits_task,
    images_task,
    merged_images_task,
    patches_task,
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
    # What `pagefl reproduce --scale laptop` changes. A table then takes an hour or two on two cores. With
    # much less (8 rounds of 150 images) nothing is learned: global accuracy on CIFAR-100 stays at chance.
    laptop: Mapping[str, Any]


class NamedTask(NamedTuple):
    build: Builder
    run: Mapping[str, Number]  # defaults of the run
    players: Mapping[str, Mapping[str, Number]]  # defaults of players, by their names
    original: Original | None = None  # the files that it reads; None if its data are generated
    small: Small | None = None


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
    "synthetic": NamedTask(synthetic, SYNTHETIC, SYNTHETIC_PLAYERS),
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
            {"task.width": 8, "rounds": 20, "epochs": 1, "lr": 0.1},
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
            {"task.per_client": 200, "rounds": 15, "epochs": 1, "lr": 0.1},
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
    ),
    "shakespeare": NamedTask(
        shakespeare_roles,
        {**REAL, "lr": 1.0, "epochs": 20, "batch_size": 32},
        players_within(1e-2, 1.0, critic_lr=1e-3, actor_lr=1e-4, tau=1e-3),
        shakespeare.SHAKESPEARE,
        Small(
            {"clients": 20, "per_client": 400, "hidden": 64},
            {"rounds": 30, "epochs": 5},
            {"rounds": 15, "epochs": 1},
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
    ),
    "digits": NamedTask(digits_task, DIGITS, ranges_around(DIGITS)),
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
