"""The command line. A command imports what it needs when it runs, so that `--help` is quick."""

import sys

import typer

from . import bench, catalogue, data, deploy, runs, sweeps
from .console import err

INTERRUPTED = 130
app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Federated learning that balances the shared model and everybody's own."
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
app.add_typer(data.app, name="data")
app.add_typer(deploy.app, name="deploy")
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Bad input, a full disk and an interruption each end in one sentence."""
    from pagefl.core.errors import UserError

    try:
        code = app(standalone_mode=False)  # what a command asked to exit with, or nothing
        if code == INTERRUPTED:  # some versions of typer make this of the exception
            raise KeyboardInterrupt
        sys.exit(code)
    except UserError as error:
        _end(str(error), 2)
    except OSError as error:
        _end(f"{error.filename or 'the run directory'}: {error.strerror or error}; nothing already written is lost", 2)
    except KeyboardInterrupt:
        _end("interrupted", INTERRUPTED)
    except Exception as error:
        if hasattr(error, "format_message"):  # the option parser's own
            _end(error.format_message(), 2)
        raise


def _end(message: str, code: int) -> None:
    err.print(f"pagefl: {message}", markup=False, highlight=False, soft_wrap=True)
    sys.exit(code)
