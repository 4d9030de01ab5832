import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # tests share `federations` and `process_state`
torch.set_num_threads(1)  # tests run side by side; two threads each only wait for one another

from process_state import process_state_kept  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests first, so that at the end no worker waits for another's."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(autouse=True)
def _process_state() -> Iterator[None]:
    with process_state_kept():
        yield
