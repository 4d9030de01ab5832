"""The command line. A command imports what it needs when it runs, so that `--help` is fast."""

import signal
import sys
import traceback
from importlib.metadata import version
from typing import Annotated

import typer

from pagefl.core.errors import UserError

from . import bench, catalogue, console, data, deploy, runs, sweeps

INTERRUPTED = 130
SHOWN_CALLS = 6  # innermost calls that are shown of a traceback
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Federated learning that balances the shared model and everybody's own.",
)
app.command()(runs.run)
app.command()(runs.resume)
app.command()(runs.report)
app.command()(runs.bias)
app.command()(runs.verify)
app.command(name="list")(catalogue.list_)
app.command()(catalogue.show)
app.command()(sweeps.sweep)
app.command()(sweeps.compare)
app.command()(sweeps.reproduce)
app.command()(console.console)
app.add_typer(data.app, name="data")
app.add_typer(deploy.app, name="deploy")
app.add_typer(bench.app, name="bench")


def _say_version(wanted: bool) -> None:
    if wanted:
        print(f"pagefl {version('pagefl')}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_say_version),
    ] = False,
) -> None:
    """Options of the program itself."""


def main() -> None:
    """Run the program. Bad input, a full disk and an interruption end with a message of one sentence."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = app(standalone_mode=False)  # the exit code of a command, or None
        if code == INTERRUPTED:  # some versions of typer return this instead of raising
            raise KeyboardInterrupt
        sys.exit(code)
    except UserError as error:
        _end(str(error), 2)
    except OSError as error:
        _end(
            f"{error.filename or 'the run directory'}: {error.strerror or error}; nothing already written "
            "is lost",
            2,
        )
    except MemoryError:
        _end("there is not enough memory for this; use fewer clients, fewer workers or a smaller model", 2)
    except KeyboardInterrupt:
        _end("interrupted", INTERRUPTED)
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # no command was given; the help has been printed
            sys.exit(0)
        if hasattr(error, "format_message"):  # an error of the option parser
            _end(error.format_message(), 2)
        traceback.print_exception(error, limit=-SHOWN_CALLS, chain=False)
        _end(f"this is a bug in pagefl: {type(error).__name__}; please report it with the lines above", 1)


def _terminate(number: int, frame: object) -> None:
    """Raise an exception, so that a sweep stops its runs. The exit code is that of the signal."""
    raise SystemExit(128 + number)


def _end(message: str, code: int) -> None:
    print(f"pagefl: {UserError(message)}", file=sys.stderr)
    sys.exit(code)
