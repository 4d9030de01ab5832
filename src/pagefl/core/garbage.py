"""Torch makes half a million objects that stay. A third of the start would be to search them for garbage."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def not_searched() -> Iterator[None]:
    """Within, or in a function with this decorator, nothing is searched for garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
