"""pagefl: federated learning that balances the shared model and everybody's own."""

import atexit
import gc
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .core.caches import keep_compiled_code
from .core.garbage import not_searched

if TYPE_CHECKING:
    from . import data as data
    from .api import environment as environment
    from .api import load as load
    from .api import report as report
    from .api import resume as resume
    from .api import run as run
    from .comparing import compare as compare
    from .comparing import sweep as sweep
    from .core.algorithm import Algorithm as Algorithm
    from .core.algorithm import Local as Local
    from .core.errors import UserError as UserError
    from .data.federated import FederatedData as FederatedData
    from .data.source import ClientSource as ClientSource
    from .experiments.spec import RunSpec as RunSpec
    from .game.protocol import ClientPolicy as ClientPolicy
    from .game.protocol import Moves as Moves
    from .game.protocol import Players as Players
    from .game.protocol import ServerPolicy as ServerPolicy
    from .runtime.metrics import Metric as Metric
    from .runtime.task import Task as Task

__version__ = version("pagefl")
keep_compiled_code(Path(__file__).parent)
atexit.register(gc.freeze)  # the end of the process frees all memory: nothing is searched for garbage

_HOMES = {
    "run": ".api",
    "resume": ".api",
    "load": ".api",
    "report": ".api",
    "environment": ".api",
    "compare": ".comparing",
    "sweep": ".comparing",
    "Algorithm": ".core.algorithm",
    "Players": ".game.protocol",
    "ClientPolicy": ".game.protocol",
    "ServerPolicy": ".game.protocol",
    "Moves": ".game.protocol",
    "Local": ".core.algorithm",
    "UserError": ".core.errors",
    "ClientSource": ".data.source",
    "FederatedData": ".data.federated",
    "RunSpec": ".experiments.spec",
    "Task": ".runtime.task",
    "Metric": ".runtime.metrics",
}
_SUBMODULES = ("data", "api", "comparing")
__all__ = [*_HOMES]  # noqa: PLE0604 (names of the table above)


def __getattr__(name: str) -> Any:
    """Imported on first use, so that `pagefl --help` does not wait for torch."""
    if name in _SUBMODULES:
        return _imported(f".{name}")
    if name not in _HOMES:
        raise AttributeError(f"module pagefl has no attribute {name}")
    return getattr(_imported(_HOMES[name]), name)


def _imported(module: str) -> ModuleType:
    with not_searched():
        return import_module(module, __name__)


def __dir__() -> list[str]:
    return [*__all__, "data", "__version__"]
