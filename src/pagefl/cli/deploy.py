"""`pagefl deploy`: a federation of real nodes, through Flower."""

import gc
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from pagefl.core.garbage import not_searched

from .terminal import Json, err


class Side(StrEnum):
    node = "node"
    server = "server"


app = typer.Typer(no_args_is_help=True, help="The same algorithms and players on real nodes, through Flower.")


@app.callback()
def _with_flower() -> None:
    from importlib.util import find_spec

    from pagefl.core.errors import UserError

    if find_spec("flwr") is None:
        raise UserError("deploy needs flwr, which is not installed; `pip install pagefl[deploy]` brings it")


def _spec(file: Path, nodes: int | None = None) -> Any:
    from pagefl.core.errors import UserError, shown
    from pagefl.experiments import spec as specs
    from pagefl.experiments.tasks import TASKS

    raw = specs.read(file)
    task = raw.get("task")
    name = task.get("name") if isinstance(task, dict) else task
    if isinstance(name, str) and name not in TASKS:
        raise UserError(
            f"task = {shown(name)}: `pagefl list tasks` does not name it, and a deployment runs no others; a "
            "task or a loss of your own runs by pagefl.run, also with executor = ray"
        )
    if nodes is not None:
        specs.put(raw, "task.clients", nodes)
    return specs.resolve(raw)


@app.command(name="app")
def app_(
    spec: Annotated[Path, typer.Argument(help="A TOML file of settings.")],
    out: Annotated[Path, typer.Option(help="The Flower app's folder.")] = Path("federation"),
    run: Annotated[
        str, typer.Option(help="On the server's machine: the run's directory.")
    ] = "/var/lib/pagefl/run",
    data: Annotated[
        str, typer.Option(help="On the server's machine: its examples.")
    ] = "/var/lib/pagefl/server.safetensors",
    keys: Annotated[
        str, typer.Option(help="On the server's machine: folder of the clients' public keys, node-0.pub …")
    ] = "/var/lib/pagefl/keys",
) -> None:
    """Write a ready Flower app for a spec: `flwr run FOLDER CONNECTION` runs it."""
    from pagefl.deploy import app as apps

    err.print(f"wrote {apps.write(_spec(spec), out, run, data, keys)}")


@app.command()
def data(
    spec: Annotated[Path, typer.Argument(help="A TOML file of settings.")],
    out: Annotated[Path, typer.Option(help="Folder of the parties' files.")] = Path("parties"),
) -> None:
    """Split a task's examples into files: one for the server, and one for each client."""
    from pagefl.deploy import parties
    from pagefl.runtime.simulation import split

    resolved = _spec(spec)
    parties.write(split(resolved.make_task(), resolved), out)
    err.print(f"wrote {out / parties.SERVER} and {resolved.task['clients']} clients' files")


@app.command(name="keys")
def keys_(
    out: Annotated[
        Path, typer.Option(help="Folder of the keys; private ones are readable by their owner alone.")
    ] = Path("keys"),
    host: Annotated[list[str] | None, typer.Option(help="Name or address of the server. Repeatable.")] = None,
    nodes: Annotated[int, typer.Option(min=1, max=10_000, help="How many nodes get a key.")] = 4,
    renew: Annotated[
        bool, typer.Option("--renew", help="Give the certificates in the folder a new end; keys stay.")
    ] = False,
) -> None:
    """Make a CA, the server's certificate, and a key for each node."""
    from pagefl.deploy import keys

    if renew:
        ca, server = keys.renew(out, host or [])
        err.print(f"wrote {ca} and {server}; start the SuperLink again, and give nodes the new {keys.CA}")
        return
    written = keys.make(out, host or ["127.0.0.1", "localhost"], nodes)
    err.print(
        f"wrote {len(written)} files to {out}; {keys.CA_KEY} is needed again only for another "
        "certificate: lock it away"
    )


@app.command()
def executor(
    side: Annotated[Side, typer.Argument(help="Whose tasks: a node's or the server's.")],
    address: Annotated[str, typer.Option(help="HOST:PORT of the SuperNode's or SuperLink's runtime API.")],
    secret: Annotated[Path, typer.Option(help="The file of its --superexec-auth-secret-file.")],
    ca: Annotated[
        Path | None, typer.Option(help="Certificate that it is known by; without one, plain HTTP is spoken.")
    ] = None,
) -> None:
    """Run the tasks of a SuperNode or SuperLink, with the installed pagefl and nothing else."""
    with not_searched():
        from pagefl.deploy.executor import Executor

        made = Executor(side.value, address, secret, ca, err.print)
    gc.freeze()  # what is imported stays
    made.work()


@app.command()
def local(
    spec: Annotated[Path, typer.Argument(help="A TOML file of settings.")],
    nodes: Annotated[int, typer.Option(min=1, help="How many nodes, a client on each.")] = 4,
    out: Annotated[
        Path, typer.Option(help="The run's directory; if it holds a run, that one goes on.")
    ] = Path("deployed"),
    json: Json = False,
) -> None:
    """Start a federation on this machine, with TLS and authentication, run a spec on it, and stop it."""
    from pagefl import api
    from pagefl.deploy import local as federations

    from .runs import watch

    resolved = _spec(spec, nodes)

    def start(**watched: Any) -> Any:
        with federations.started(resolved, out) as federation:
            federation.watch(**watched)
        api.report([out], out / "report.html")
        return api.load(out)

    watch(resolved, out, json, None, start)
