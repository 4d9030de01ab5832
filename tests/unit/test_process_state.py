"""A test that changes its process changes nothing for the next one; a run leaves torch as it found it."""

import os
import random
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from federations import task
from process_state import STATE, process_state_kept

import pagefl
from pagefl.runtime.workers import flushes_denormals

pytest_plugins = ["pytester"]
CHANGES = {
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "flushes denormals": lambda: torch.set_flush_denormal(not flushes_denormals()),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "gradients": lambda: torch.set_grad_enabled(False),
    "torch's random state": lambda: torch.rand(1),
    "numpy's random state": lambda: np.random.rand(),
    "python's random state": random.random,
    "signal handlers": lambda: signal.signal(signal.SIGTERM, lambda number, frame: None),
    "environment": lambda: os.environ.update(PAGEFL_DATA="elsewhere", NEW="1"),
    "working directory": lambda: os.chdir(Path.cwd().parent),
}


@pytest.mark.parametrize("name", STATE)
def test_what_a_test_changes_is_put_back(name):
    def seen() -> str:
        return repr(STATE[name][0]())

    before = seen()
    with process_state_kept():
        CHANGES[name]()
        assert seen() != before
    assert seen() == before


@pytest.mark.slow
def test_the_next_test_finds_everything_as_it_was(pytester):
    """With this suite's conftest.py, in a process of its own."""
    shared = Path(__file__).parents[1]
    pytester.makeconftest(
        f"import sys; sys.path.insert(0, {str(shared)!r})\n"
        + (shared / "conftest.py").read_text().replace("__file__", "'.'")
    )
    pytester.makepyfile(
        """
        import os, random, signal
        import numpy as np
        import torch
        from process_state import STATE

        def seen():
            state = {name: repr(get()) for name, (get, _) in STATE.items()}
            return {**state, "environment": os.environ.get("NEW")}

        FOUND = []

        def test_one():
            FOUND.append(seen())
            torch.set_num_threads(3)
            torch.set_flush_denormal(True)
            torch.set_default_dtype(torch.float64)
            torch.rand(1), np.random.rand(), random.random()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.environ["NEW"] = "1"
            os.chdir("/")
            assert seen() != FOUND[0]
            assert False, "a test that fails too"

        def test_two():
            assert seen() == FOUND[0]
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(failed=1, passed=1)


@pytest.mark.parametrize("flush", [False, True])
def test_a_run_leaves_flushing_as_it_was(flush):
    torch.set_flush_denormal(flush)
    pagefl.run(task=task(), algorithm="fedavg", rounds=1)
    assert flushes_denormals() == flush


@pytest.mark.xdist_group("a group")
def test_groups_are_kept_together(request):
    """Otherwise each worker makes again what the tests of a group share, and nothing says so."""
    if "PYTEST_XDIST_WORKER" not in os.environ or not request.config.option.loadgroup:
        pytest.skip("only with pytest -n 2 --dist loadgroup")
    assert request.node.nodeid.endswith("@a group")
