"""Runs a whole federation on one machine, for trying it out.

It uses a SuperLink, SuperNodes, TLS and authentication, as on many machines.
"""

import ctypes
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic, sleep

import tomli_w

from pagefl.core.errors import UserError
from pagefl.core.memory import needs
from pagefl.experiments import own_code, sweep
from pagefl.experiments.spec import RunSpec
from pagefl.runtime import record
from pagefl.runtime.directory import SPEC, RunDirectory
from pagefl.runtime.halves import Say
from pagefl.runtime.own_files import check_own_files
from pagefl.runtime.run import Observe
from pagefl.runtime.simulation import split

from . import app, keys, parties
from .server_app import LOCK, LOG, OUTCOME

HOST, CONNECTION = "127.0.0.1", "local"
PROGRAMS = Path(sys.executable).parent  # Flower's programs find one another through PATH
STARTED = (b"/flwr", b"/flower-", b"deploy\0executor")  # in the command lines of what is started
NODE_BYTES = 500_000_000  # memory of a SuperNode and its executor
LOOK_SECONDS, START_SECONDS, STOP_SECONDS, AGAIN_SECONDS = 0.5, 300.0, 10.0, 10.0


class Local:
    """A federation on this machine.

    `folder/deploy` holds what is not part of the run: keys, each party's data and state, logs, and Flower's
    configuration.
    """

    def __init__(self, spec: RunSpec, folder: Path) -> None:
        app.check_path("out", str(folder))
        needs(
            spec.task["clients"] * NODE_BYTES,
            f"--nodes {spec.task['clients']}: their processes",
            "use fewer nodes",
        )
        self.spec, self.folder = spec, folder.resolve()
        self.own = self.folder / "deploy"
        self.keys, self.data, self.logs = self.own / "keys", self.own / "data", self.own / "logs"
        self.nodes = spec.task["clients"]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.address = f"{HOST}:{_free_port()}"
        self.ports = {number: _free_port() for number in range(self.nodes)}
        self.not_before: dict[str, float] = {}  # when a process that died may be started again

    def prepare(self) -> None:
        """Write keys, data and the app. What exists already is kept."""
        if (self.own / "app").exists() and app.spec_of(self.own / "app") != self.spec:
            raise UserError(
                f"out = {self.folder}: it holds a federation of another spec; choose another directory"
            )
        if not (self.own / "app").exists() and (self.folder / SPEC).exists():
            raise UserError(f"out = {self.folder}: it holds a simulation; choose another directory")
        for path in (self.logs, self.own / "home"):
            path.mkdir(parents=True, exist_ok=True)
        if not self.keys.exists():
            keys.make(self.keys, [HOST, "localhost"], self.nodes)
        if not (self.data / parties.SERVER).exists():
            parties.write(split(self.spec.make_task(), self.spec), self.data)
        if not (self.own / "app").exists():
            server = str(self.data / parties.SERVER)
            app.write(self.spec, self.own / "app", str(self.folder), server, str(self.keys))
        connection = {
            "address": self.address,
            "root-certificates": str(self.keys / keys.CA),
            "insecure": False,
        }
        known = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
        (self.own / "home" / "config.toml").write_text(tomli_w.dumps(known), encoding="utf-8")

    def start(self) -> None:
        """Start all processes, and return when the run has been accepted."""
        host, port = self.address.split(":")
        self.start_process(
            "superlink",
            *("flower-superlink", "--host", host, "--port", port, "--enable-supernode-auth"),
            *("--ssl-ca-certfile", str(self.keys / keys.CA), "--ssl-certfile", str(self.keys / keys.SERVER)),
            *("--ssl-keyfile", str(self.keys / keys.SERVER_KEY), "--disable-runtime-dependency-installation"),
            *self._guarded(keys.SERVER_SECRET),
        )
        self._wait_for_superlink()
        self.start_executor("server", self.address, keys.SERVER_SECRET, "--ca", str(self.keys / keys.CA))
        known = [str((self.keys / keys.node_key(number)).with_suffix(".pub")) for number in range(self.nodes)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # each command takes seconds to start
            list(pool.map(lambda key: self.flwr("supernode", "register", key, CONNECTION), known))
        for start in self.starters.values():
            start()
        self.flwr("run", str(self.own / "app"), CONNECTION)

    @property
    def starters(self) -> dict[str, Callable[[], None]]:
        """What starts each of the nodes' processes."""
        found: dict[str, Callable[[], None]] = {}
        for number, port in self.ports.items():
            executor = f"node-{number}-executor"
            found[f"node-{number}"] = partial(self.start_node, number)
            found[executor] = partial(
                self.start_executor, "node", f"{HOST}:{port}", keys.node_secret(number), name=executor
            )
        return found

    def revive(self, say: Say) -> None:
        """Start the nodes' processes again that have died."""
        for name, start in self.starters.items():
            if self._dead(name) and monotonic() >= self.not_before.get(name, 0.0):
                say(f"{name} has died and is started again (log: {self.logs / f'{name}.log'})")
                start()
                self.not_before[name] = monotonic() + AGAIN_SECONDS

    def start_node(self, number: int, *security: str, name: str | None = None) -> None:
        """`security`: options that replace the federation's CA and this node's key."""
        config = {
            "client": number,
            "data": str(self.data / parties.client_file(number)),
            "state": str(self.own / f"node-{number}"),
        }
        for kind in own_code.KINDS:
            if own_code.is_own(name_of := getattr(self.spec, kind)["name"]):
                config[kind] = name_of
        told = self.own / f"node-{number}.toml"  # a file: Flower's options cannot quote every path
        told.write_text(tomli_w.dumps(config), encoding="utf-8")
        key, port = str(self.keys / keys.node_key(number)), str(_free_port() if name else self.ports[number])
        usual = ("--root-certificates", str(self.keys / keys.CA), "--auth-supernode-private-key", key)
        self.start_process(
            name or f"node-{number}",
            *("flower-supernode", "--superlink", self.address, "--host", HOST, "--port", port),
            *("--node-config", str(told), *self._guarded(keys.node_secret(number)), *(security or usual)),
        )

    def start_executor(
        self, side: str, address: str, secret: str, *more: str, name: str = "executor"
    ) -> None:
        own = ("--address", address, "--secret", str(self.keys / secret), *more)
        self.start_process(name, "pagefl", "deploy", "executor", side, *own)

    def _guarded(self, secret: str) -> tuple[str, ...]:
        """Options by which only an executor that knows this secret gets tasks."""
        return ("--isolation", "process", "--superexec-auth-secret-file", str(self.keys / secret))

    def start_process(self, name: str, *command: str) -> None:
        """Start a process that ends if we are killed.

        It has its own session, so that it can be stopped together with its children.
        """
        with (self.logs / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(  # noqa: S603 (our own arguments)
                [str(PROGRAMS / command[0]), *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(),
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def flwr(self, *arguments: str) -> str:
        done = subprocess.run(  # noqa: S603 (our own arguments)
            [str(PROGRAMS / "flwr"), *arguments],
            env=self._environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise UserError(
                f"flwr {arguments[0]} failed: {' '.join((done.stderr + done.stdout).split())[-400:]}"
            )
        return done.stdout

    def kill(self, name: str) -> None:
        process = self.processes[name]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """Ask all processes to stop, then wait for them. A Ctrl-C is ignored meanwhile."""
        usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        end = monotonic() + STOP_SECONDS
        for name, process in list(self.processes.items()):
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - monotonic()))
            with suppress(ProcessLookupError):
                self.kill(name)
        self.clear()
        signal.signal(signal.SIGINT, usual)

    def clear(self) -> None:
        """Kill Flower's apps that outlived a killed parent. They are recognised by their FLWR_HOME."""
        mark = f"FLWR_HOME={self._environment()['FLWR_HOME']}".encode()
        found = True
        while found:
            found = False
            for path in Path("/proc").glob("[0-9]*/environ"):
                with suppress(OSError):
                    program = (path.parent / "cmdline").read_bytes()
                    if mark in path.read_bytes().split(b"\0") and any(name in program for name in STARTED):
                        os.kill(int(path.parent.name), signal.SIGKILL)
                        found = True
            sleep(0.1 if found else 0)

    def serving(self) -> bool:
        """Whether the server is running. It holds a lock as long as it lives."""
        try:
            with (self.folder / LOCK).open("r+") as file:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def watch(self, observe: Observe, say: Say) -> None:
        """Pass on records and log lines until the server has written its outcome. Revive nodes that die."""
        shown = sweep.rounds_done(self.folder)
        rounds, log = Tail(self.folder / record.ROUNDS), Tail(self.folder / LOG)
        begun, served = monotonic(), False
        while True:
            alive = self.serving()  # before the outcome, which a server writes before it ends
            served = served or alive
            over = (self.folder / OUTCOME).exists()
            for line in log.new():
                say(line)
            for entry in map(json.loads, rounds.new()):
                if entry["round"] > shown:
                    observe(entry)
                    shown = entry["round"]
            if over:
                break
            if not alive and (served or self._dead("executor") or monotonic() - begun > START_SECONDS):
                raise UserError(
                    f"the server has died; the same command goes on from its checkpoint (logs: {self.logs})"
                )
            if self._dead("superlink"):
                raise UserError(
                    "the SuperLink has died; the same command goes on from the checkpoint (logs: "
                    f"{self.logs})"
                )
            self.revive(say)
            sleep(LOOK_SECONDS)
        if problem := json.loads((self.folder / OUTCOME).read_text())["problem"]:
            raise UserError(problem)

    def _wait_for_superlink(self) -> None:
        end = monotonic() + START_SECONDS
        while not _listens(self.address):
            if self._dead("superlink") or monotonic() > end:
                raise UserError(f"the SuperLink does not start: see {self.logs / 'superlink.log'}")
            sleep(LOOK_SECONDS)

    def _dead(self, name: str) -> bool:
        return self.processes[name].poll() is not None

    def _environment(self) -> dict[str, str]:
        own = {
            "FLWR_HOME": str(self.own / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }
        return {**os.environ, **own, "PATH": f"{PROGRAMS}{os.pathsep}{os.environ.get('PATH', '')}"}


@contextmanager
def started(spec: RunSpec, folder: Path) -> Iterator[Local]:
    """Start a federation. At the end all of its processes are stopped, whatever happens."""
    local = Local(spec, folder)
    check_own_files(local.folder)
    with RunDirectory(local.own).alone(), _ended_by(signal.SIGTERM, signal.SIGHUP):
        local.prepare()
        local.clear()
        (local.folder / OUTCOME).unlink(missing_ok=True)
        try:
            local.start()
            yield local
        finally:
            local.stop()


@contextmanager
def _ended_by(*signals: signal.Signals) -> Iterator[None]:
    """Let these signals raise an exception, so that all started processes are stopped."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    usual = {number: signal.signal(number, end) for number in signals}
    try:
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


def _listens(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as trial:
        trial.settimeout(1.0)
        return trial.connect_ex((host, int(port))) == 0


class Tail:
    """Reads the lines that are added to a file from now on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = path.stat().st_size if path.exists() else 0

    def new(self) -> list[str]:
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            if file.seek(0, os.SEEK_END) < self.place:  # it was cut to what a checkpoint covers
                self.place = 0
            file.seek(self.place)
            whole = file.read().rpartition(b"\n")[0]
        self.place += len(whole) + 1 if whole else 0
        return whole.decode(errors="replace").split("\n") if whole else []
