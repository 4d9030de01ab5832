"""`pagefl console`: the live web console. The terminal's own output is in terminal.py."""

from pathlib import Path
from typing import Annotated

import typer

from .terminal import err


def console(
    directory: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="Folder of runs, at any depth.", show_default="runs")
    ] = Path("runs"),
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the web page.")] = 8765,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Outside this machine, visitors need a token.")
    ] = "127.0.0.1",
    token: Annotated[
        bool, typer.Option("--token", help="Ask for a token on this machine too, which others may share.")
    ] = False,
) -> None:
    """Watch and steer runs in a browser: live curves, the demand slider, stop, resume, compare, start."""
    from importlib.util import find_spec

    from pagefl.core.errors import UserError

    for needed in ("starlette", "uvicorn"):
        if find_spec(needed) is None:
            raise UserError(
                f"console needs {needed}, which is not installed; `pip install pagefl[console]` brings it"
            )
    from pagefl.console.server import serve

    serve(directory, host, port, err.print, with_token=token)
