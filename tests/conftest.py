import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

gc.disable()  # modules and tests stay: until all are there, nothing is searched for garbage
sys.path.insert(0, str(Path(__file__).parent))  # tests share `federations` and `process_state`
# Tests run side by side; two threads each only wait for one another. So do those of the processes they start.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The same draws in every run: a bound between two rounding errors holds for most, not for all.
hypothesis.settings.register_profile("the same draws", derandomize=True, deadline=None)
hypothesis.settings.load_profile("the same draws")

from process_state import process_state_kept  # noqa: E402

from pagefl.runtime import rounds  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Plans first: one worker compiles their operations, while others have tests that need no plan. Then what
    mostly waits, Ray's tests in one chain and deployments, and then other slow tests, so that at the end no
    worker waits for another's.
    """
    items.sort(key=turn)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


FIRST = ("plans", "ray")  # groups


def turn(item: pytest.Item) -> int:
    group = item.get_closest_marker("xdist_group")
    if group and group.args[0] in FIRST:
        return FIRST.index(group.args[0])
    if item.path.match("e2e/test_deploy.py"):
        return 2
    if item.get_closest_marker("slow"):
        return {"learning": 3, "e2e": 4}.get(item.path.parent.name, 5)
    return 6


@pytest.fixture(autouse=True)
def _no_announcements(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is announced only in slow rounds would be said on a busy machine."""
    monkeypatch.setattr(rounds, "PATIENCE", float("inf"))


@pytest.fixture(autouse=True)
def _process_state() -> Iterator[None]:
    with process_state_kept():
        yield
