"""Oracles that several files share."""

import sys
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def byzfl():
    """Without its benchmarks: they need torchvision, whose builds rarely fit the torch that is here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "byzfl.benchmark", ModuleType("byzfl.benchmark"))
        yield pytest.importorskip("byzfl")
