"""Serves the console: the address, the token, and the end."""

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from socket import socket

import uvicorn

from pagefl.core.errors import UserError
from pagefl.runtime.own_files import SPEC

from .actions import OWN
from .app import application
from .guard import LOOPBACK, Keys

TOKEN = "token"  # noqa: S105 (the name of its file)
FAILED_TO_START = (1, 3)  # exit codes of uvicorn, such as for a port that is taken
CLOSING = 2  # seconds that open pages get when the console ends


def serve(root: Path, host: str, port: int, say: Callable[[str], None], *, with_token: bool = False) -> None:
    """Serve until interrupted. Runs that were started go on."""
    if (root / SPEC).exists():
        raise UserError(f"{root} is a run's directory; expected the folder above it, such as {root.parent}")
    if root.exists() and not root.is_dir():
        raise UserError(f"{root} is a file; expected a folder of runs")
    loopback = host in LOOPBACK
    root.mkdir(parents=True, exist_ok=True)
    keys = Keys(secrets.token_urlsafe(32) if with_token or not loopback else None)
    app = application(root, keys, loopback=loopback)
    shown = f"[{host}]" if ":" in host else host
    say(f"console of {root}: http://{shown}:{port}/ (Ctrl-C ends it; runs go on)")
    if keys.token:
        say(f"it needs a token: add ?token=… with the content of {_keep(keys.token, root)}")
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        log_config=None,  # it would close the handlers of everybody else in the process
        access_log=False,  # an address may hold the token
        server_header=False,
        timeout_graceful_shutdown=CLOSING,
        ws="none",
    )
    try:
        Server(config, app.state.console.helper.close).run()
    except SystemExit as end:
        if end.code in FAILED_TO_START:
            raise UserError(f"port = {port}: it cannot be used on {host}; choose another by --port") from None
        raise
    finally:
        app.state.console.helper.close()
        if keys.token:
            with suppress(OSError):
                (root / OWN / TOKEN).unlink()


class Server(uvicorn.Server):
    """Calls `closing` before it waits for open answers."""

    def __init__(self, config: uvicorn.Config, closing: Callable[[], None]) -> None:
        super().__init__(config)
        self.closing = closing

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        self.closing()
        await super().shutdown(sockets)


def _keep(token: str, root: Path) -> Path:
    """Write the token to a file that only its owner can read."""
    own = root.resolve() / OWN
    own.mkdir(mode=0o700, exist_ok=True)
    path = own / TOKEN
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token)
    return path
