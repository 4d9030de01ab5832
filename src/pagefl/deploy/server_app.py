"""The ServerApp: the same loop, records and checkpoints as a simulation, with clients behind Flower's Grid."""

import json
import secrets
from functools import partial
from pathlib import Path

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from pagefl.core.errors import UserError
from pagefl.experiments import spec as specs
from pagefl.runtime.directory import RunDirectory
from pagefl.runtime.run import Run, agreed, loop, make_federation, one_numeric_mode
from pagefl.runtime.task import Task

from . import parties
from .grid import GridNodes
from .remote import RemoteGame, Say, ServerHalf

RUN_ID, LOG, OUTCOME = "run-id", "deploy.log", "outcome.json"
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    out = Path(str(context.run_config["out"]))
    out.mkdir(parents=True, exist_ok=True)
    problem = None
    with (out / LOG).open("a", buffering=1, encoding="utf-8") as log:
        try:
            serve(grid, str(context.run_config["spec"]), Path(str(context.run_config["data"])), out, partial(print, file=log))
        except UserError as error:
            problem = str(error)
            print(problem, file=log)
    aside = out / f"{OUTCOME}.aside"
    aside.write_text(json.dumps({"problem": problem}))
    aside.replace(out / OUTCOME)


def serve(grid: Grid, spec_text: str, data: Path, out: Path, say: Say) -> Run:
    """From the start, or from the checkpoint in `out`; one is made after every round, as a node keeps only two rounds."""
    spec = specs.of_text(spec_text).model_copy(update={"checkpoint_seconds": 0.0, "workers": 1})
    task = spec.make_task()
    clients = spec.task["clients"]
    with one_numeric_mode():
        own = Task(task.name, task.module, parties.read_server(data))
        federation = make_federation(own, spec.make_algorithm(), spec, say, kind=partial(ServerHalf, clients=clients))
        assert isinstance(federation, ServerHalf)
        setup, terms = agreed(federation, spec)
        setup = setup._replace(clients=clients, sizes=np.zeros(clients, np.int64))
        nodes = GridNodes(grid, spec, federation, _run_id(out), say)
        follower = spec.make_players().sides(setup)[1]
        limits = {"largest_norm": spec.deploy.largest_norm, "fewest": spec.deploy.fewest}
        game = RemoteGame(federation, nodes, follower, setup, terms, **limits, say=say)
        return loop(game, partial(task.fresh_module, spec.seed), spec, RunDirectory(out, spec.toml()), lambda entry: None, say)


def _run_id(out: Path) -> str:
    """Nodes keep their state under it: that of another run, even of the same spec, is not this one's."""
    path = out / RUN_ID
    if not path.exists():
        path.write_text(secrets.token_hex(8))
    return path.read_text()
