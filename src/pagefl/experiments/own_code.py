"""The user's own algorithms and players, named as module:Class.

The module is code on the user's machine. It is found where Python finds modules, or in the current folder. A
name that comes from a run directory or the network must not be used before the user has given the same name.
"""

import sys
from importlib import import_module

from pagefl.core.algorithm import Algorithm
from pagefl.core.errors import UserError
from pagefl.game.protocol import Players

KINDS: dict[str, type] = {"algorithm": Algorithm, "players": Players}


def is_own(name: object) -> bool:
    return isinstance(name, str) and ":" in name


def find(kind: str, name: str) -> type:
    """The class named by `module:Class`. It must be an algorithm or players, depending on `kind`."""
    module, _, own = name.partition(":")
    if not own.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise UserError(f"{kind} = {name!r}: expected module:Class, such as my_{kind}:Mine")
    sys.path.insert(0, "")  # the current folder, as for a script
    try:
        found = getattr(import_module(module), own, None)
    except UserError:
        raise
    except Exception as error:  # a user's own module may raise anything
        raise UserError(
            f"{kind} = {name!r}: {module} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    finally:
        sys.path.remove("")
    base = KINDS[kind]
    if not isinstance(found, type) or not issubclass(found, base):
        raise UserError(f"{kind} = {name!r}: {module} has no class {own} that is a pagefl.{base.__name__}")
    return found


def check_named(kind: str, recorded: object, given: object, where: str) -> None:
    """Check that the user has given the name too.

    Code that only a run directory or the network names is never used.
    """
    if is_own(recorded) and given != recorded:
        raise UserError(
            f"{where} uses {kind} = {recorded!r}, which is code of your own machine; if you trust it, "
            f"name it again: {kind} = "
            f"{recorded!r} (on the command line: --{kind} {recorded})"
        )
