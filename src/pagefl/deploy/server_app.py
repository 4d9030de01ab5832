"""The ServerApp: the loop, records and checkpoints of a simulation, with clients behind Flower's Grid."""

import fcntl
import json
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.superlink.grid import HttpGrid

from pagefl.core.errors import UserError
from pagefl.core.files import write_whole
from pagefl.experiments import spec as specs
from pagefl.experiments.spec import RunSpec
from pagefl.game.follower import Follower
from pagefl.game.game import Game
from pagefl.game.leaders import pays
from pagefl.runtime import halves, privacy
from pagefl.runtime.devices import check_simulated
from pagefl.runtime.directory import SPEC, RunDirectory
from pagefl.runtime.halves import Say
from pagefl.runtime.hostile import check_not_attacked
from pagefl.runtime.loop import loop
from pagefl.runtime.run import Run
from pagefl.runtime.simulation import one_numeric_mode

from . import keys, parties
from .capped import CappedGrid
from .grid import GridNodes
from .introductions import Network
from .node import told_by
from .remote import RemoteClients
from .secagg.server import secure_clients
from .wall_clock import WallClock

BYTES = 8  # of one number of an upload, at most
BYTES_BESIDE = 1_000_000  # of a reply, besides its upload
RUN_ID, LOG, LOCK, OUTCOME = "run-id", "deploy.log", "server.lock", "outcome.json"
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the server. It holds a lock as long as it lives, so that others can see that it is running."""
    out, own_keys = (Path(str(context.run_config[name])) for name in ("out", "keys"))
    assert isinstance(grid, HttpGrid)
    out.mkdir(parents=True, exist_ok=True)
    with (out / LOCK).open("w") as held, (out / LOG).open("a", buffering=1, encoding="utf-8") as log:
        fcntl.lockf(held, fcntl.LOCK_EX)
        say = partial(print, file=log)
        try:
            for line in keys.warnings(own_keys):
                say(line)
            serve(
                partial(CappedGrid, grid),
                str(context.run_config["spec"]),
                Path(str(context.run_config["data"])),
                out,
                say,
                keys.numbers(own_keys),
            )
            write_whole(out / OUTCOME, json.dumps({"problem": None}))
        except Exception as error:
            sentence = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            print(sentence, file=log)
            write_whole(out / OUTCOME, json.dumps({"problem": sentence}))
            raise


def serve(
    connect: Callable[[int], Network],
    spec_text: str,
    data: Path,
    out: Path,
    say: Say,
    numbers: Mapping[bytes, int] | None = None,
) -> Run:
    """Run from the start, or from the checkpoint in `out`.

    `connect`: the network, which refuses replies of more bytes than it is told. `numbers`: the clients'
    numbers by their public keys; None: nodes are believed.

    A checkpoint is written after every round, because a node keeps only two rounds.
    """
    spec = specs.of_text(spec_text).model_copy(update={"checkpoint_seconds": 0.0, "workers": 1})
    _check(spec, out)
    task, players, clients = spec.make_task(), spec.make_players(), spec.task["clients"]
    with one_numeric_mode():
        examples = parties.read_server(data)
        begin = halves.start(task.fresh_module(spec.seed), spec.make_algorithm(), spec, examples.game, say)
        half, terms = halves.server_half(begin, examples, clients), halves.terms_of(spec)
        clock = WallClock(half, terms.participation)
        follower = Follower(half, players.server_policy(halves.setup_of(spec, clients)), terms, clock=clock)
        policy = players.client_policy(halves.setup_of(spec, 1))
        privacy.check_players(spec, follower.policy, policy)
        experience = policy.experience(np.array([0]))
        due = {name: rows.shape[1:] for name, rows in {**half.uploads, **experience}.items()}
        told = told_by(spec, pays(terms, policy))
        network = connect(sum(BYTES * shape.numel() for shape in due.values()) + BYTES_BESIDE)
        nodes = GridNodes(network, spec, due, told, _run_id(out), say, numbers)
        if spec.deploy.secure:
            _check_secure(spec)
            trained = len(half.participants(1, spec.participation))
            remote: RemoteClients = secure_clients(
                half, follower.policy, policy, trained, nodes, spec.deploy, say
            )
        else:
            names = (set(half.uploads), set(experience))
            remote = RemoteClients(
                *(nodes, clients, *names, spec.deploy, say),
                compares=not terms.private,
                largest_size_share=terms.largest_size_share,
            )
        make_module = partial(task.fresh_module, spec.seed)
        # A stop takes effect at once: without its SuperLink the server would wait for the end of the round.
        return loop(
            Game(follower, remote),
            half.data,
            make_module,
            spec,
            RunDirectory(out, spec.toml()),
            lambda entry: None,
            say,
        )


def _check_secure(spec: RunSpec) -> None:
    """What looks at single uploads cannot be combined with secure aggregation."""
    for name, asked in (
        ("privacy.epsilon", spec.privacy.epsilon),
        ("defence.name", spec.defence.name != "none" and spec.defence.name),
        ("defence.before", spec.defence.before != "none" and spec.defence.before),
    ):
        if asked:
            raise UserError(
                f"deploy.secure = true: {name} = {asked} needs single uploads, and the server sees sums "
                "alone; choose one of them"
            )


def _check(spec: RunSpec, out: Path) -> None:
    if spec.stop == "equilibrium":
        raise UserError(
            'stop = "equilibrium": the server of a deployment does not see the clients\' own models; '
            'expected "rounds"'
        )
    if spec.reward == "weighted-local" and "loss" not in spec.deploy.tells:
        raise UserError(
            f'deploy.tells = {spec.deploy.tells}: reward = "weighted-local" needs "loss" among them'
        )
    if spec.personal.when != "never" and "holdout" not in spec.deploy.tells:
        raise UserError(
            f'deploy.tells = {spec.deploy.tells}: the personal step needs "holdout" among them; or set '
            'personal.when = "never"'
        )
    check_not_attacked(spec, "a deployment")
    check_simulated(spec, "a deployment")
    if (out / SPEC).exists() and (out / SPEC).read_text() != spec.toml():
        raise UserError(f"{out} holds a run of another spec; choose another directory")


def _run_id(out: Path) -> str:
    """The id of this run. Nodes keep their state under it, apart from other runs of the same spec."""
    path = out / RUN_ID
    if not path.exists():
        write_whole(path, secrets.token_hex(8))
    return path.read_text()
