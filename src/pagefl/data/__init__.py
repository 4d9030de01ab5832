"""Data for federations: your own data, partitions of a pool, augmentation, and the data sets of tasks."""

from importlib import import_module
from types import ModuleType

_PUBLIC = ("augment", "federated", "flgo", "huggingface", "leaf", "partition", "pfllib", "source")


def __getattr__(name: str) -> ModuleType:
    """Import a submodule on first use, because `huggingface` needs an extra."""
    if name not in _PUBLIC:
        raise AttributeError(f"module pagefl.data has no attribute {name}")
    return import_module(f".{name}", __name__)


def __dir__() -> list[str]:
    return [*_PUBLIC]
