"""Connects this process to a Ray cluster, or starts a Ray on this machine."""

import logging
import os
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pagefl.core import cores
from pagefl.core.errors import UserError, shortened, shown

CONNECT_SECONDS = 10.0
OWN = {  # of a Ray that is started here
    "RAY_USAGE_STATS_ENABLED": "0",  # tell nobody
    "RAY_worker_niceness": "0",  # Ray's own is 15, behind everything else
}


def connect(address: str, store: int) -> tuple[Any, bool]:
    """Ray, and whether it was connected here. A program that is already connected keeps its connection.

    `address`: "auto" for the cluster of this machine, or HOST:PORT; empty for a Ray of our own. `store`: the
    bytes of our own Ray's object store.
    """
    try:
        import ray
    except ImportError:
        raise UserError("executor = ray needs Ray; install it with `pip install 'pagefl[cluster]'`") from None
    if ray.is_initialized():
        return ray, False
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    with _own_term_handler(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of Ray, about itself
        if not address:
            for name, value in OWN.items():
                os.environ.setdefault(name, value)
            quiet["include_dashboard"] = False
            ray.init("local", num_cpus=cores.available(), object_store_memory=store, **quiet)
            return ray, True
        try:
            if address != "auto":
                _answers(address)
            ray.init(address, **quiet)
        except (OSError, RuntimeError, ValueError, AssertionError) as error:
            cause = shortened(" ".join(str(error).split()), 200)
            raise UserError(
                f"address = {shown(address)}: cannot connect to a Ray cluster there ({cause}); expected auto "
                "or HOST:PORT of a cluster that `ray start --head` has started"
            ) from None
    return ray, True


def _answers(address: str) -> None:
    """Raise if nobody listens there. Ray itself would try for many minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError("no HOST:PORT")
    socket.create_connection((host, int(port)), CONNECT_SECONDS).close()


@contextmanager
def _own_term_handler() -> Iterator[None]:
    """Ray sets a handler of its own, with which a TERM would end without stopping the runs."""
    kept = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, kept)
