"""What tests share without meaning to, the state of their process, is put back after each of them."""

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from pagefl.runtime.workers import flushes_denormals

SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGCHLD,
    signal.SIGALRM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


def handlers() -> dict[signal.Signals, Any]:
    return {number: signal.getsignal(number) for number in SIGNALS}


def set_handlers(found: dict[signal.Signals, Any]) -> None:
    for number, handler in found.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def torch_random_state() -> bytes:
    return torch.get_rng_state().numpy().tobytes()


def set_torch_random_state(found: bytes) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(found), dtype=torch.uint8))


def set_environment(found: dict[str, str]) -> None:
    for name in os.environ.keys() - found.keys():
        del os.environ[name]
    os.environ.update(found)


STATE: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "flushes denormals": (flushes_denormals, torch.set_flush_denormal),
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
    "torch's random state": (torch_random_state, set_torch_random_state),
    "numpy's random state": (np.random.get_state, np.random.set_state),
    "python's random state": (random.getstate, random.setstate),
    "signal handlers": (handlers, set_handlers),
    "environment": (lambda: dict(os.environ), set_environment),
    "working directory": (os.getcwd, os.chdir),
}


@contextmanager
def process_state_kept() -> Iterator[None]:
    found = {name: get() for name, (get, _) in STATE.items()}
    try:
        yield
    finally:
        for name, (_, put) in STATE.items():
            put(found[name])
