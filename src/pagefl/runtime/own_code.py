"""A user's own code, which the other machines of a cluster need not have."""

import sys
import sysconfig
from functools import partial
from types import ModuleType


def own_modules(*objects: object) -> set[str]:
    """The names of the modules in which these things and what they use are written, where these are a user's
    own: on other machines they need not be installed, as packages must be."""
    installed = tuple(sysconfig.get_path(name) for name in ("stdlib", "platlib", "purelib"))
    found: set[str] = set()
    waiting = [getattr(_whole(own), "__module__", None) for own in objects]
    while waiting:
        name = waiting.pop() or ""
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if name in found or not file or file.startswith(installed) or name.partition(".")[0] == "pagefl":
            continue
        found.add(name)
        used = list(vars(module).values())
        waiting += [
            own.__name__ if isinstance(own, ModuleType) else getattr(own, "__module__", None) for own in used
        ]
    return found - {"__main__"}  # what a program itself holds is always sent by value


def _whole(own: object) -> object:
    """The function behind a partial one."""
    return _whole(own.func) if isinstance(own, partial) else own
