import gc
from collections.abc import Iterator

import pytest

from pagefl.core.garbage import not_searched


@pytest.fixture(params=[True, False])
def searched(request) -> Iterator[bool]:
    """Whether garbage is searched for before and after."""
    was_enabled = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if was_enabled else gc.disable)()


@not_searched()
def fail():
    assert not gc.isenabled()
    raise ZeroDivisionError


def test_garbage_is_searched_for_afterwards_as_before(searched):
    with pytest.raises(ZeroDivisionError):
        fail()
    assert gc.isenabled() is searched
