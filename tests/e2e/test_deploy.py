"""Real processes: SuperLink, SuperNodes, TLS, authentication, and what happens when some of them die.

These tests mostly wait: tests/conftest.py lets them begin early, side by side.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import ClassVar

import httpx
import near_nodes
import pytest
import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.runtime import RuntimeHttpClient

import pagefl
from pagefl import api
from pagefl.deploy import keys
from pagefl.deploy import local as local_federation
from pagefl.deploy.local import Local, started
from pagefl.experiments import spec as specs
from pagefl.runtime import checkpoint, record

pytestmark = pytest.mark.slow
NEVER = {"when": "never"}  # a personal step is two more messages to every node; one test takes it
SECONDS = 1200.0  # a busy machine is slow, and only what never ends fails


def spec_of(algorithm: str, players: str, clients: int, rounds: int, **settings):
    own = {"warm_up": 1} if players == "page" else {}  # so that agents learn in so few rounds
    task = {"name": "synthetic", "clients": clients}
    raw = {
        "task": task,
        "algorithm": algorithm,
        "players": {"name": players, **own},
        "rounds": rounds,
        "epochs": 2,
    }
    return specs.resolve({**raw, **settings})


def wait_for(condition, what: str) -> None:
    end = monotonic() + SECONDS
    while not condition():
        assert monotonic() < end, what
        sleep(0.3)


def rounds_of(folder: Path) -> int:
    return len(record.read(folder)[0]) if (folder / record.ROUNDS).exists() else 0


def assert_same(folder: Path, spec) -> None:
    deployed, simulated = api.load(folder), pagefl.run(spec)
    assert torch.allclose(deployed.state["server.model"], simulated.state["server.model"], atol=1e-4)
    assert_same_rounds(deployed.rounds, simulated.rounds)


def assert_same_rounds(deployed: list[record.Record], simulated: list[record.Record]) -> None:
    for ours, theirs in zip(deployed, simulated, strict=True):
        for name in (
            "global_accuracy",
            "local_accuracy",
            "global_loss",
            "reward_server",
            "reward_clients",
            "mean_lr",
        ):
            assert ours[name] == pytest.approx(theirs[name], abs=1e-4, rel=1e-4), (name, ours["round"])


def enough_to_answer() -> float:
    """Seconds for a node that is alive: for every message it starts a process, which takes longer on a busy
    machine. What nodes would have to compile is compiled first.
    """
    pagefl.run(spec_of("scaffold", "page", clients=2, rounds=1, personal=NEVER))
    begun = monotonic()
    subprocess.run([sys.executable, "-c", "import pagefl.deploy.client_app"], check=True)
    return max(30.0, 10 * (monotonic() - begun))


def test_a_node_that_is_killed_comes_back(tmp_path):
    """In the middle of a round; its control and its agent go on from its disk."""
    spec = spec_of(
        "scaffold",
        "page",
        clients=2,
        rounds=3,
        personal=NEVER,
        deploy={"deadline": enough_to_answer(), "fewest": 0.5},
    )
    folder, said = tmp_path / "run", []
    with started(spec, folder) as local:
        wait_for(lambda: rounds_of(folder) >= 1, "a round")
        (state,) = (local.own / "node-1").iterdir()
        before = checkpoint.read(state / checkpoint.NAME)[1]["round"]
        for name in ("node-1", "node-1-executor"):
            local.kill(name)
        local.watch(lambda entry: None, said.append)
    # More than once, as long as the SuperLink believes that the killed one is alive.
    assert {line.split(" (")[0] for line in said if "died" in line} == {
        "node-1 has died and is started again",
        "node-1-executor has died and is started again",
    }
    rounds = api.load(folder).rounds
    assert [entry["round"] for entry in rounds] == [1, 2, 3]
    assert all(entry["participants"] >= 1 for entry in rounds)
    tensors, facts = checkpoint.read(state / checkpoint.NAME)
    assert facts["round"] >= before
    assert tensors["kept.control"].abs().sum() > 0
    # it missed a round, not its memory
    assert int(tensors["clients_agent.replay.written"][0]) >= facts["round"] - 2


def test_nodes_and_intruders(tmp_path):
    """PAGE's players on SCAFFOLD's rule, with TLS and authentication: the simulation's result, and
    strangers are refused."""
    spec = spec_of("scaffold", "page", clients=2, rounds=2)
    with started(spec, tmp_path / "run") as local:
        intrude(local, tmp_path)
        local.watch(lambda entry: None, lambda message: None)
        logs = {path.stem: path.read_text() for path in local.logs.iterdir()}
    assert_same(tmp_path / "run", spec)
    assert all(entry["participants"] == 2 for entry in api.load(tmp_path / "run").rounds)
    let_in = {name for name, log in logs.items() if "SuperNode ID" in log}
    assert let_in == {"node-0", "node-1"}
    assert {"stranger", "plain", "deceived"} <= {
        name for name, log in logs.items() if "Starting Flower SuperNode" in log
    }
    assert not started_by(tmp_path / "run")


def intrude(local: Local, folder: Path) -> None:
    """With a key that was never registered; in plain text; believing in another CA."""
    stranger = ec.generate_private_key(ec.SECP384R1())
    form = serialization.PrivateFormat.OpenSSH
    path = folder / "stranger.key"
    path.write_bytes(stranger.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    keys.make(folder / "other", ["127.0.0.1"], 1)
    known, own = str(local.keys / keys.CA), str(local.keys / keys.node_key(0))
    for name, security in {
        "stranger": ("--root-certificates", known, "--auth-supernode-private-key", str(path)),
        "plain": ("--insecure",),
        "deceived": (
            "--root-certificates",
            str(folder / "other" / keys.CA),
            "--auth-supernode-private-key",
            own,
        ),
    }.items():
        local.start_node(0, *security, name=name)


def test_a_server_that_is_killed_goes_on_by_the_same_command_until_ctrl_c(tmp_path):
    """PAGE: its rounds are those of an undisturbed run. The interrupt comes while the server and a node are
    at work, and leaves nothing running."""
    spec = spec_of("fedavg", "page", clients=1, rounds=50, personal=NEVER)
    file, folder = tmp_path / "spec.toml", tmp_path / "run"
    file.write_text(spec.toml())
    command = [*(sys.executable, "-m", "pagefl", "deploy", "local", str(file), "--nodes", "1", "--out")]
    # Whoever runs tests in the background has interrupts ignored, and so would what they start.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    start = partial(subprocess.Popen, [*command, str(folder)], stderr=subprocess.PIPE, text=True)
    first = start()
    wait_for(lambda: rounds_of(folder) >= 1, "a round")
    os.killpg(superlink_of(first.pid), signal.SIGKILL)
    _, said = first.communicate(timeout=SECONDS)
    assert first.returncode == 2
    assert "the same command goes on" in said

    before = rounds_of(folder)
    second = start(preexec_fn=heard)
    wait_for(lambda: rounds_of(folder) > before, "another round")
    assert any("executor\0server" in program for program in started_by(folder))
    second.send_signal(signal.SIGINT)
    _, said = second.communicate(timeout=SECONDS)
    assert second.returncode == 130
    assert "interrupted" in said
    assert not started_by(folder)
    rounds = record.read(folder)[0]
    assert_same_rounds(rounds, pagefl.run(spec).rounds[: len(rounds)])


def started_by(folder: Path) -> list[str]:
    """Processes that know this federation's home."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if str(folder / "deploy" / "home").encode() in path.read_bytes():
                found.append((path.parent / "cmdline").read_text())
    return found


def superlink_of(parent: int) -> int:
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent and "flower-superlink" in (path / "cmdline").read_text():
                return int(path.name)
        except OSError:
            continue
    raise AssertionError("there is no SuperLink")


class HostileFederation(Local):
    """Clients 0 to 2 are honest. 3 attacks in every round, 4 claims to be huge. A thief with a registered
    key, that of number 5, says that it is 0."""

    executors: ClassVar = {"node-3-executor": "attacks", "node-4-executor": "claims"}

    def prepare(self) -> None:
        keys.make(self.keys, ["127.0.0.1", "localhost"], self.nodes + 1)
        super().prepare()

    @property
    def starters(self):
        return {**super().starters, "thief": self.start_thief}

    def start_thief(self) -> None:
        key = self.keys / keys.node_key(5)
        self.flwr("supernode", "register", str(key.with_suffix(".pub")), "local")
        known = ("--root-certificates", str(self.keys / keys.CA), "--auth-supernode-private-key", str(key))
        self.start_node(0, *known, name="thief")
        arguments = self.processes["thief"].args
        address = f"127.0.0.1:{arguments[arguments.index('--port') + 1]}"
        self.start_executor("node", address, keys.node_secret(0), name="thief-executor")

    def start_process(self, name: str, *command: str) -> None:
        if name == "thief":  # with a folder of its own
            told = self.own / "node-0.toml"
            own = self.own / "thief.toml"
            own.write_text(told.read_text().replace('/node-0"', '/thief"'))
            command = tuple(str(own) if part == str(told) else part for part in command)
        if kind := self.executors.get(name):
            command = ("python", str(Path(__file__).parent / "hostile_node.py"), kind, *command[4:])
        super().start_process(name, *command)


def peak(process) -> int:
    """The most memory that a process had, in bytes."""
    facts = Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * int(facts.partition("VmHWM:")[2].split()[0])


def test_hostile_nodes_are_contained(tmp_path, monkeypatch):
    """Another's number, a huge size, an upload times -90, 300 MB, NaN, silence: refused or contained, named,
    and the run ends as without them."""
    deploy = {"deadline": enough_to_answer() / 2, "fewest": 0.5}
    spec = spec_of(
        "fedavg",
        "fixed",
        clients=5,
        rounds=6,
        personal=NEVER,
        deploy=deploy,
        defence={"largest_size_share": 0.3},
    )
    folder, memory, programs = tmp_path / "run", [], []
    monkeypatch.setattr(local_federation, "Local", HostileFederation)
    with started(spec, folder) as local:

        def look(entry):
            memory.append(peak(local.processes["executor"]))
            programs.append(started_by(folder))

        task = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        stranger = RuntimeHttpClient(f"http://127.0.0.1:{local.ports[0]}")
        with stranger, pytest.raises(httpx.HTTPStatusError, match="401"):
            stranger.AcquireTask(task)
        local.watch(look, lambda message: None)
    log = (folder / "deploy.log").read_text()
    for sentence in (
        "is turned away: it calls itself client 0, and its key is that of client 5",
        "round 1: client 3 is quarantined: its upload's norm is",
        "round 2: client 3 is quarantined: it does not tell its test_accuracy",
        "round 3: client 3 is quarantined: its reply is larger than",
        "round 5: client 3 does not answer; it is asked again in round 7",
        "client 4 tells a size of 1e+09, which counts as",
    ):
        assert sentence in log
    assert memory[-1] - memory[1] < 100_000_000  # while 300 MB were sent
    assert programs[0]
    assert not any("--token" in program for found in programs for program in found)
    rounds = api.load(folder).rounds
    assert all(entry["largest_weight"] < 0.301 for entry in rounds)
    alone = spec.model_copy(update={"deploy": spec.deploy.model_copy(update={"patience": 0.1})})
    honest = near_nodes.deploy(alone, tmp_path / "honest", away=[(i, j) for i in (3, 4) for j in range(9)])
    assert rounds[-1]["global_accuracy"] > honest.rounds[-1]["global_accuracy"] - 0.03
