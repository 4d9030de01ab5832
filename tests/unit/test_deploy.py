"""Deployment without processes: nodes behind a grid that calls Flower's ClientApp directly.

Processes are in e2e.
"""

import stat
from functools import cache
from time import monotonic

import numpy as np
import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.common.constant import ErrorCode
from near_nodes import CLIENTS, UNREADABLE, NearGrid, deploy, replaced, spec_of, with_values
from rich.console import Console
from safetensors.torch import save_file

import pagefl
from pagefl import api
from pagefl.algorithms import ALGORITHMS
from pagefl.core.errors import UserError
from pagefl.deploy import app as apps
from pagefl.deploy import keys, parties, server_app, wire
from pagefl.deploy.node import Node
from pagefl.experiments import spec as specs
from pagefl.game.players import PLAYERS
from pagefl.reports.progress import Progress, summary
from pagefl.runtime import checkpoint, loop
from pagefl.runtime.simulation import split
from pagefl.trust.privacy.randomness import Simulated

MEASURED = ("seconds", "missing", "late", "clock", "device_seconds")


def numbers(rounds):
    """Every number of every round but what is measured, flat, for pytest.approx."""
    found = {}
    for entry in rounds:
        tables = {"": entry, "payoffs.": entry["payoffs"], "agents.": entry["agents"]}
        for prefix, table in tables.items():
            for name, value in table.items():
                if isinstance(value, int | float) and name not in MEASURED:
                    found[f"{entry['round']} {prefix}{name}"] = value
    return found


PAIRS = [
    *((name, "page") for name in ALGORITHMS),  # every client with its own learning rate and epochs
    *(("fedavg", name) for name in PLAYERS),
    ("scaffold", "page-shared"),
    ("feddyn", "page-shared"),
]


LONG = ("fedala", "fedrecon")  # they train for seconds


@pytest.mark.parametrize(
    ("algorithm", "players"),
    [
        pytest.param(*pair, marks=[pytest.mark.slow] if pair[0] in LONG else [])
        for pair in dict.fromkeys(PAIRS)
    ],
)
def test_the_same_result_as_a_simulation(algorithm, players, tmp_path):
    """Every algorithm and every player: what is split between a server and nodes computes what one process
    does.
    """
    spec = spec_of(algorithm, players, "synthetic-mlp" if ALGORITHMS[algorithm].needs_body else "synthetic")
    simulated, deployed = pagefl.run(spec), deploy(spec, tmp_path)
    assert torch.allclose(deployed.state["server.model"], simulated.state["server.model"], atol=1e-6)
    assert numbers(deployed.rounds) == pytest.approx(numbers(simulated.rounds), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    "settings", [{"holdout": 0.2}, {"protocol": "released"}, {"reward": "weighted-local"}, {"bias": "10:1"}]
)
def test_the_game_by_other_terms(settings, tmp_path):
    spec = spec_of(players="page", **settings)
    simulated, deployed = pagefl.run(spec), deploy(spec, tmp_path)
    assert numbers(deployed.rounds) == pytest.approx(numbers(simulated.rounds), rel=1e-5, abs=1e-6)


def test_decay_and_momentum_reach_the_nodes(tmp_path):
    spec = spec_of(lr_decay=0.5, momentum=0.9)
    simulated, deployed = pagefl.run(spec), deploy(spec, tmp_path)
    assert deployed.history.mean_lr.tolist() == pytest.approx([spec.lr * 0.5**round for round in range(5)])
    plain = pagefl.run(spec_of())
    assert torch.allclose(deployed.state["server.model"], simulated.state["server.model"], atol=1e-6)
    assert not torch.allclose(plain.state["server.model"], simulated.state["server.model"], atol=1e-3)


def test_time_is_measured_and_goes_on_after_a_restart(tmp_path):
    begun = monotonic()
    found = deploy(spec_of(rounds=2), tmp_path).history
    longer = deploy(spec_of(rounds=2), tmp_path).history
    assert longer.clock.tolist() == found.clock.tolist()
    assert 0 < found.clock[0] < found.clock[1] <= monotonic() - begun
    assert (found.device_seconds > 0).all()
    assert "energy" not in found


def test_simulated_devices_are_for_simulations(tmp_path):
    with pytest.raises(UserError, match="time is simulated by `pagefl run` alone"):
        deploy(spec_of(devices={"name": "phones"}), tmp_path)


@pytest.mark.parametrize("task", ["synthetic", "synthetic-mlp"])
def test_the_optimiser_reaches_the_nodes(task, tmp_path):
    spec = spec_of("fednova", task=task, optimiser="deltasgd", lr=1.0, rounds=2)
    simulated, deployed = pagefl.run(spec), deploy(spec, tmp_path)
    assert torch.allclose(deployed.state["server.model"], simulated.state["server.model"], atol=1e-4)
    assert deployed.history.gradients.tolist() == simulated.history.gradients.tolist()
    plain = pagefl.run(spec.model_copy(update={"optimiser": "sgd"}))
    assert not torch.allclose(plain.state["server.model"], simulated.state["server.model"], atol=1e-2)


def test_some_take_part(tmp_path):
    spec = spec_of("scaffold", participation=0.5)
    simulated, deployed = pagefl.run(spec), deploy(spec, tmp_path)
    assert torch.allclose(deployed.state["server.model"], simulated.state["server.model"], atol=1e-6)


HOSTILE = {
    "not finite": with_values(lambda own: {"model": torch.full_like(own["model"], torch.nan)}),
    "norm": with_values(lambda own: {"model": own["model"] * 1e6}),
    "[31]": with_values(lambda own: {"model": own["model"][:31]}),
    "due are 'model'": with_values(lambda own: {"another": own["model"]}),
    "its records are": lambda content: replaced(content, surprise=ConfigRecord({"a": 1})),
    "its numbers are": lambda content: replaced(
        content, told=MetricRecord({**content[wire.NUMBERS], "more": 1.0})
    ),
    "should be finite numbers": lambda content: replaced(
        content, told=MetricRecord({**content[wire.NUMBERS], "lr": [1.0, 2.0]})
    ),
    "another question": lambda content: replaced(content, ask=ConfigRecord({"run": "x", "round": 1})),
    "bytes for": lambda content: replaced(
        content, ArrayRecord({"model": Array("float32", (930,), wire.RAW, b"few")})
    ),
    "float64": lambda content: replaced(content, ArrayRecord({"model": Array(np.zeros(930))})),
    "it has no": lambda content: RecordDict(
        {wire.ARRAYS: ConfigRecord(), wire.NUMBERS: content[wire.NUMBERS], wire.ASK: content[wire.ASK]}
    ),
}


def private(**own):
    return {"privacy": {"epsilon": 100.0, "noise": 1.0, "accountant": "rdp", **own}, "participation": 0.5}


@pytest.mark.parametrize("algorithm", ["fedavg", "feddyn"])
def test_a_private_deployment_is_a_private_simulation(algorithm, tmp_path, monkeypatch):
    """But for who draws the noise: here it is the simulation's. Nobody takes part in round 1."""
    spec = spec_of(algorithm, **private())
    monkeypatch.setattr(loop, "System", lambda: Simulated(spec.seed))
    simulated, deployed = pagefl.run(spec), deploy(spec, tmp_path)
    assert simulated.rounds[0]["participants"] == 0
    assert torch.allclose(deployed.state["server.model"], simulated.state["server.model"], atol=1e-6)
    found, expected = (
        # nodes that are not asked do not tell it
        {name: value for name, value in numbers(run.rounds).items() if "before" not in name}
        for run in (deployed, simulated)
    )
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_noise_of_a_deployment_is_the_operating_systems(tmp_path):
    spec = spec_of(**private())
    one, other = (deploy(spec, tmp_path / name) for name in ("one", "other"))
    assert {entry["noise"] for entry in one.rounds} == {"system"}
    assert [entry["epsilon"] for entry in one.rounds] == [entry["epsilon"] for entry in other.rounds]
    assert not torch.isclose(one.state["server.model"], other.state["server.model"]).any()


def test_with_privacy_nobody_is_refused_because_of_the_others(tmp_path):
    """Clipping bounds a large upload, and one that is not finite counts as zero."""
    spec, said = spec_of(**(private(clip=0.01) | {"participation": 1.0})), []
    far = with_values(lambda own: {"model": own["model"] * 1e6})
    deployed = deploy(spec, tmp_path, said, tamper={2: far, 1: HOSTILE["not finite"]})
    assert [entry["participants"] for entry in deployed.rounds] == [3] * 5
    assert all("client 1 is quarantined: its upload is not finite" in line for line in said)
    # five rounds of at most 0.01 from three clients, and as much noise on each of 930 weights
    assert deployed.state["server.model"].norm() < 1.0


@pytest.mark.parametrize("reason", HOSTILE)
def test_a_hostile_node_is_quarantined_and_named(reason, tmp_path):
    """The others train as if it had not been there."""
    said = []
    spec = spec_of()
    deployed = deploy(spec, tmp_path, said, tamper={2: HOSTILE[reason]})
    assert [entry["quarantined"] for entry in deployed.rounds] == [1] * 5
    assert [entry["participants"] for entry in deployed.rounds] == [3] * 5
    assert all("client 2 is quarantined" in line and reason in line for line in said)
    assert len(said) == 5
    assert deployed.rounds[-1]["global_accuracy"] > 0.5
    told = ("local_accuracy", "local_loss", "local_accuracy_before")
    # nothing of it is in the records
    assert all(0 <= entry[name] < 100 for entry in deployed.rounds for name in told)


def told(name, value):
    def tamper(content):
        if name not in content[wire.NUMBERS]:
            return content
        return replaced(content, told=MetricRecord({**content[wire.NUMBERS], name: value}))

    return tamper


HOSTILE_STEPS = {
    "holdout_3 is 1e+300": told("holdout_3", 1e300),
    "should be finite numbers": told("holdout_3", float("inf")),
    "holdout_0 is -7": told("holdout_0", -7.0),
    "does not tell its personal_accuracy": told("personal_accuracy", float("nan")),
    "gradients is 1.5": told("gradients", 1.5),
    "its arrays are": lambda content: replaced(content, wire.pack({"model": torch.zeros(3)})[wire.ARRAYS]),
    "its records are": HOSTILE["its records are"],
    "another question": HOSTILE["another question"],
}


@pytest.mark.parametrize("reason", HOSTILE_STEPS)
def test_a_hostile_node_is_left_out_of_the_personal_step(reason, tmp_path):
    """Its training is none the worse, and the others choose without it."""
    said, spec = [], spec_of()
    deployed = deploy(spec, tmp_path, said, tamper={2: HOSTILE_STEPS[reason]}, kind=MessageType.EVALUATE)
    assert [entry["quarantined"] for entry in deployed.rounds] == [0] * 5
    assert 1 <= len(said) <= 2
    assert all("client 2 is left out of the personal step" in line and reason in line for line in said)
    assert 0 <= deployed.rounds[-1]["personal_accuracy"] <= 1


def test_the_personal_model_stays_on_its_node(tmp_path):
    spec = spec_of()
    simulated = pagefl.run(spec)
    deployed = deploy(spec, tmp_path)
    assert not [name for name in deployed.state if name.startswith("clients.")]
    for i in range(CLIENTS):
        (folder,) = (tmp_path / "data" / f"node-{i}").glob("*/personal")
        own = checkpoint.read(folder / checkpoint.NAME)[0]["personal"]
        assert torch.allclose(own, simulated.state["clients.stepped"][i], atol=1e-6)


def test_the_step_needs_what_clients_tell_of_it(tmp_path):
    tells = {"tells": ["accuracy", "loss"]}
    with pytest.raises(UserError, match='the personal step needs "holdout" among them'):
        deploy(spec_of(deploy=tells), tmp_path)
    run = deploy(spec_of(deploy=tells, personal={"when": "never"}), tmp_path)
    assert run.history.personal_accuracy.isna().all()
    assert run.history.gradients.isna().all()


NAN = float("nan")
LIES = {
    "size": [NAN, 0.0, 7.5, 1e18],
    "test_accuracy": [7.0, -0.1, NAN, 1e308],
    "before_accuracy": [7.0, NAN],
    "test_loss": [-1.0, 1e308, NAN],
    "before_loss": [1e10, NAN],
    "train_loss": [-1e308, NAN],
    "lr": [0.0, -0.1, 1e7, NAN],
    "epochs": [0.0, 1.5, 1e18, NAN],
    "reward": [-1.0, 1e10, NAN],
    "critic_loss": [1e308],
    "actor_loss": [-1e308],
}


def lying(name, lies):
    """In round i, the i-th of the lies."""

    def tamper(content):
        lie = lies[content[wire.ASK]["round"] - 1]
        return replaced(content, told=MetricRecord({**content[wire.NUMBERS], name: lie}))

    return tamper


@pytest.fixture(scope="module")
def without_client_2(tmp_path_factory):
    """Records of this many rounds in which its uploads are refused."""

    @cache
    def rounds(count):
        spec = spec_of(players="page", rounds=count)
        return deploy(spec, tmp_path_factory.mktemp("without"), tamper={2: HOSTILE["not finite"]}).rounds

    return rounds


@pytest.mark.slow
@pytest.mark.parametrize("name", LIES)
def test_a_number_that_cannot_be_true_is_refused_by_name(name, without_client_2, tmp_path):
    """The records are those of a federation in which this client's uploads are refused."""
    said, lies = [], LIES[name]
    spec = spec_of(players="page", rounds=len(lies))
    deployed = deploy(spec, tmp_path / "lying", said, tamper={2: lying(name, lies)})
    assert numbers(deployed.rounds) == numbers(without_client_2(len(lies)))
    assert [entry["quarantined"] for entry in deployed.rounds] == [1] * len(lies)
    for round, (line, lie) in enumerate(zip(said, lies, strict=True), 1):
        what = f"it does not tell its {name}" if np.isnan(lie) else f"its {name} is {lie:.6g}, expected "
        assert line.startswith(f"round {round}: client 2 is quarantined: {what}")
    known = (
        "local_accuracy",
        "local_accuracy_before",
        "local_loss",
        "local_std",
        "train_loss",
        "mean_lr",
        "reward_clients",
    )
    assert all(entry[column] is not None for entry in deployed.rounds for column in known)
    assert all(0 <= entry["local_accuracy"] <= 1 for entry in deployed.rounds)


@pytest.mark.parametrize(
    ("name", "lie"), [("test_accuracy", 7.0), ("before_accuracy", NAN), ("test_loss", 1e308)]
)
def test_a_client_that_begins_with_a_lie_is_turned_away(name, lie, tmp_path, monkeypatch):
    said, honest = [], Node._told

    def tell(self, answer):
        told = honest(self, answer)
        return {**told, name: lie} if self.leaders.first == 3 else told

    monkeypatch.setattr(Node, "_told", tell)
    deployed = deploy(spec_of(deploy={"patience": 0.1}), tmp_path, said)
    assert said[0].startswith("node 1003 is turned away: it")
    assert name in said[0]
    assert [entry["participants"] for entry in deployed.rounds] == [3] * 5
    assert all(entry["local_accuracy"] is not None for entry in deployed.rounds)


def test_means_are_over_those_that_told(tmp_path):
    """One of four comes in the fourth round, and its agent does not learn, as the others' do."""
    spec = spec_of(players="page", deploy={"patience": 0.1})
    learning = {i: lying("critic_loss", [1.0 + i] * 5) for i in range(3)}
    deployed = deploy(spec, tmp_path, tamper=learning, away=[(3, i) for i in range(4)])
    for entry, clients in zip(deployed.rounds, deployed.client_rounds, strict=True):
        told = [value for value in clients["local_accuracy"] if value is not None]
        assert len(told) == (4 if entry["round"] > 3 else 3)
        assert entry["local_accuracy"] == pytest.approx(np.mean(told))
        assert entry["local_worst10"] == min(told)
        for column in ("local_accuracy_before", "train_loss"):
            assert entry[column] == pytest.approx(
                np.mean([value for value in clients[column] if value is not None])
            )
        assert entry["reward_clients"] is not None
        assert entry["agents"]["clients_critic"] == 2.0
    assert [entry["participants"] for entry in deployed.rounds] == [3, 3, 3, 4, 4]


def test_a_reply_that_cannot_be_read_takes_no_other_with_it(tmp_path):
    said = []
    deployed = deploy(spec_of(), tmp_path, said, tamper={1: lambda content: UNREADABLE})
    assert [(entry["participants"], entry["quarantined"]) for entry in deployed.rounds] == [(3, 1)] * 5
    assert said == [f"round {i}: client 1 is quarantined: its reply cannot be read" for i in range(1, 6)]


def test_a_node_that_died_is_missing_and_nobody_is_blamed(tmp_path):
    """The SuperLink answers in its place, and in its own name."""
    said = []
    gone = Error(code=ErrorCode.NODE_UNAVAILABLE, reason="gone")
    deployed = deploy(spec_of(), tmp_path, said, tamper={1: lambda content: gone})
    assert [(entry["participants"], entry["missing"], entry["quarantined"]) for entry in deployed.rounds] == [
        (3, 1, 0)
    ] * 5
    assert not said


@pytest.mark.parametrize(("reason", "told"), [("out of memory", "'out of memory'"), (None, "'code 2'")])
def test_a_node_that_answers_with_an_error_is_quarantined_with_what_it_said(reason, told, tmp_path):
    said = []
    error = Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason)
    deployed = deploy(spec_of(), tmp_path, said, tamper={1: lambda content: error})
    assert deployed.rounds[-1]["quarantined"] == 1
    assert said[0] == f"round 1: client 1 is quarantined: it answers with an error: {told}"


@pytest.mark.slow
@pytest.mark.parametrize("size", [float("nan"), float("inf"), 1e300, 1e18, -5.0, 0.0, 7.5])
def test_a_client_that_lies_about_its_size_is_turned_away(size, tmp_path, monkeypatch):
    said, honest = [], Node._told

    def lie(self, answer):
        told = honest(self, answer)
        return {**told, "size": size} if self.leaders.first == 3 else told

    monkeypatch.setattr(Node, "_told", lie)
    deployed = deploy(spec_of(deploy={"patience": 0.1}), tmp_path, said)
    assert deployed.rounds[-1]["participants"] == 3
    assert "node 1003 is turned away" in said[0]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"stop": "equilibrium"}, "does not see the clients' own models"),
        ({"reward": "weighted-local", "deploy": {"tells": ["moves"]}}, 'needs "loss"'),
    ],
)
def test_what_a_deployment_cannot_do_is_said_before_it_begins(settings, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        deploy(spec_of(**settings), tmp_path)


def test_another_spec_in_the_same_directory(tmp_path):
    deploy(spec_of(), tmp_path)
    with pytest.raises(UserError, match="another spec"):
        deploy(spec_of(lr=0.05), tmp_path)


def test_who_comes_after_a_restart_counts(tmp_path):
    """It began with three of four; the fourth came while the server was down."""

    class Killed(BaseException):
        pass

    def die(content):
        if content[wire.ASK]["round"] == 3:
            raise Killed
        return content

    spec = spec_of(deploy={"patience": 0.1})
    with pytest.raises(Killed):
        deploy(spec, tmp_path, tamper={0: die}, away=[(3, i) for i in range(9)])
    deployed = deploy(spec, tmp_path)
    assert [entry["participants"] for entry in deployed.rounds] == [3, 3, 4, 4, 4]
    assert deployed.rounds[-1]["smallest_weight"] == pytest.approx(0.25)


def test_late_replies_are_dropped_and_counted(tmp_path):
    said = []
    spec = spec_of(players="page", deploy={"deadline": 0.3})
    deployed = deploy(spec, tmp_path, said, slow=[(1, 2), (3, 2)])
    assert [(entry["missing"], entry["late"], entry["participants"]) for entry in deployed.rounds] == [
        *((0, 0, 4), (2, 0, 2), (0, 2, 4)),
        *((0, 0, 4), (0, 0, 4)),
    ]
    assert said == ["2 replies came after their round had ended, and are dropped"]


def test_too_few_replies_end_the_run_in_a_sentence(tmp_path):
    spec = spec_of(deploy={"deadline": 0.3})
    with pytest.raises(UserError, match=r"round 3: 1 of 4 clients answered.*deploy.fewest"):
        deploy(spec, tmp_path, slow=[(i, 3) for i in range(3)])
    assert deploy(spec, tmp_path).rounds[-1]["round"] == 5  # the same command goes on


def test_a_node_that_goes_and_comes_again_goes_on_from_its_disk(tmp_path):
    """SCAFFOLD's control and PAGE's agent: as in a simulation where it did not take part."""
    deployed = deploy(spec_of("scaffold", "page"), tmp_path, away=[(0, 3)])
    assert [entry["participants"] for entry in deployed.rounds] == [4, 4, 3, 4, 4]
    (run,) = (tmp_path / "data" / "node-0").iterdir()
    tensors, facts = pagefl.runtime.checkpoint.read(run / "checkpoint")
    assert facts["round"] == 5
    # a transition for each of its rounds but the last
    assert int(tensors["clients_agent.replay.written"][0]) == 3
    assert tensors["kept.control"].abs().sum() > 0


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_server_that_was_killed_goes_on(after, tmp_path):
    """Killed after the nodes have played a round that it has no checkpoint of: they go back, and play it
    again.
    """
    spec = spec_of("scaffold", "page")

    class Killed(BaseException):
        pass

    def die(content):
        if content[wire.ASK]["round"] == after + 1:
            raise Killed
        return content

    for _ in range(2):  # twice in the same place
        with pytest.raises(Killed):
            deploy(spec, tmp_path, tamper={CLIENTS - 1: die})
    again, undisturbed = deploy(spec, tmp_path), pagefl.run(spec)
    assert torch.allclose(again.state["server.model"], undisturbed.state["server.model"], atol=1e-6)
    assert numbers(again.rounds) == pytest.approx(numbers(undisturbed.rounds), rel=1e-5, abs=1e-6)


def test_the_server_learns_what_the_spec_says_and_no_more(tmp_path):
    spec = spec_of(players="page", deploy={"tells": ["moves"]}, personal={"when": "never"})
    seen = []

    def look(content):
        seen.append(set(content[wire.NUMBERS]))
        return content

    deployed = deploy(spec, tmp_path, tamper={0: look})
    assert seen == [{"size", "lr", "epochs", "gradients", "seconds"}] * 5
    last = deployed.rounds[-1]
    assert last["mean_epochs"] is not None
    assert last["local_accuracy"] is last["reward_clients"] is last["train_loss"] is None
    with pytest.raises(UserError, match="on its node"):
        deployed.personal(0)
    assert not any("kept" in name or "clients" in name for name in deployed.state)
    api.report([tmp_path / "run"], tmp_path / "report.html")  # what was not told is left out
    with Progress("a run", 5) as shown:
        for entry in deployed.rounds:
            shown.observe(entry)
    summary(deployed.rounds, Console())


def test_two_nodes_that_say_they_are_the_same(tmp_path):
    said = []
    spec = spec_of(deploy={"patience": 0.1})
    parties.write(split(spec.make_task(), spec), tmp_path / "data")
    grid = NearGrid(spec, tmp_path / "data")
    grid.contexts[1003].node_config["client"] = 1
    (tmp_path / "run").mkdir()
    server = tmp_path / "data" / parties.SERVER
    server_app.serve(lambda largest: grid, spec.toml(), server, tmp_path / "run", said.append)
    assert said == ["node 1003 is turned away: it calls itself client 1, which another node is"]


def test_keys(tmp_path):
    """A chain that verifies, names for the server, keys that nobody else can read, and none overwritten."""
    folder = tmp_path / "keys"
    written = keys.make(folder, ["fl.example.org", "10.0.0.7"], 2)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in written:
        if path.suffix == ".key":
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    ca, server = (
        x509.load_pem_x509_certificate((folder / name).read_bytes()) for name in (keys.CA, keys.SERVER)
    )
    server.verify_directly_issued_by(ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
    own = load_pem_private_key((folder / keys.SERVER_KEY).read_bytes(), None)
    assert own.public_key() == server.public_key()
    assert load_ssh_private_key((folder / keys.node_key(1)).read_bytes(), None).curve.name == "secp384r1"
    with pytest.raises(UserError, match="not empty"):
        keys.make(folder, ["localhost"], 2)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"not a file of tensors", "cannot be read"),
        ({"train.x": torch.zeros(2, 3)}, "it has no train.y"),
        ({"train.y": torch.zeros(3, dtype=torch.long)}, "x of shape"),
        ({"train.y": torch.zeros(2)}, "int64"),
        ({"train.x": torch.full((2, 3), torch.inf)}, "NaN or infinite"),
    ],
)
def test_a_party_with_bad_data(content, sentence, tmp_path):
    path = tmp_path / "own.safetensors"
    good = {f"{role}.x": torch.zeros(2, 3) for role in ("train", "test")}
    good |= {f"{role}.y": torch.zeros(2, dtype=torch.long) for role in ("train", "test")}
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif len(content) == 1 and "no train.y" in sentence:
        save_file(content, path)
    else:
        save_file({**good, **content}, path)
    with pytest.raises(UserError, match=sentence):
        parties.read_client(path, holdout=False)


def test_the_app_folder(tmp_path):
    from flwr.cli.config_utils import load_and_validate

    spec = spec_of("scaffold", "page")
    apps.write(spec, tmp_path / "app", "/srv/run", "/srv/server.safetensors", "/srv/keys")
    config, warnings = load_and_validate(tmp_path / "app" / "pyproject.toml")
    assert not warnings
    assert specs.of_text(config["tool"]["flwr"]["app"]["config"]["spec"]) == spec
    with pytest.raises(UserError, match="not empty"):
        apps.write(spec, tmp_path / "app", "", "", "")


def test_images_are_augmented_on_their_node(tmp_path):
    from pagefl.data.augment import crop_and_flip

    x, y = torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.zeros(4, dtype=torch.long)
    data = pagefl.FederatedData([(x, y)], [(x, y)], (x, y), augment=crop_and_flip)
    parties.write(data, tmp_path)
    assert (
        parties.read_client(tmp_path / parties.client_file(0), holdout=False).train.augment is crop_and_flip
    )
