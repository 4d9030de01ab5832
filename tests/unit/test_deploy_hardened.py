"""Deployment against hostile, silent and foreign nodes. Real processes are in e2e."""

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
import torch
from cryptography import x509
from flwr.app import Array, ArrayRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse, PullObjectRequest, PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.runtime import RuntimeHttpClient
from near_nodes import CLIENTS, NearGrid, deploy, replaced, spec_of, with_values
from typer.testing import CliRunner

import pagefl
from pagefl.cli import app as command_line
from pagefl.core.errors import UserError
from pagefl.deploy import client_app, executor, keys, parties, wire
from pagefl.deploy.absences import Absences
from pagefl.deploy.capped import CappedGrid
from pagefl.deploy.executor import Executor
from pagefl.deploy.local import Local
from pagefl.deploy.norms import UsualNorm
from pagefl.runtime.simulation import split

KEYS = {b"key of %d" % i: i for i in range(CLIENTS)}


def near(spec, folder, **settings):
    parties.write(split(spec.make_task(), spec), folder / "data")
    return NearGrid(spec, folder / "data", **settings)


def test_a_node_with_anothers_number_is_refused_by_name(tmp_path):
    """It comes first, and the client whose number it takes still takes part."""
    spec, said = spec_of(deploy={"patience": 0.1}), []
    grid = near(spec, tmp_path)
    thief = 999
    config = NearGrid.config(tmp_path / "data", 0)
    grid.contexts = {thief: Context(1, thief, config, RecordDict(), {"spec": spec.toml()}), **grid.contexts}
    deployed = deploy(spec, tmp_path, said, KEYS, near=grid)
    assert said == ["node 999 is turned away: it calls itself client 0, and its key is no client's"]
    grid.contexts[1003].node_config["client"] = 1
    said.clear()
    deploy(spec.model_copy(update={"rounds": 1}), tmp_path / "again", said, KEYS, near=grid)
    assert said[1] == "node 1003 is turned away: it calls itself client 1, and its key is that of client 3"
    assert [entry["participants"] for entry in deployed.rounds] == [4] * 5


def test_a_size_claim_is_capped(tmp_path):
    spec, said = spec_of(defence={"largest_size_share": 0.4}), []

    def claim(content):
        return replaced(content, told=MetricRecord({**content[wire.NUMBERS], "size": 1e9}))

    deployed = deploy(spec, tmp_path, said, tamper={2: claim})
    assert [entry["largest_weight"] for entry in deployed.rounds] == pytest.approx([0.4] * 5)
    (line,) = (line for line in said if "1e+09" in line)
    assert line.startswith("client 2 tells a size of 1e+09, which counts as ")
    deployed = deploy(spec_of(defence={"largest_size_share": 1.0}), tmp_path / "open", tamper={2: claim})
    assert deployed.rounds[-1]["largest_weight"] > 0.99


def test_an_upload_turned_round_and_enlarged_is_refused(tmp_path):
    spec, said = spec_of(), []
    hostile = with_values(lambda own: {"model": -90 * own["model"]})
    deployed = deploy(spec, tmp_path, said, tamper={2: hostile})
    assert [entry["quarantined"] for entry in deployed.rounds] == [1] * 5
    assert all("its upload's norm is" in line for line in said)
    alone = deploy(
        spec, tmp_path / "without", tamper={2: with_values(lambda own: {"model": own["model"] * torch.nan})}
    )
    assert torch.equal(deployed.state["server.model"], alone.state["server.model"])


@pytest.mark.parametrize("factor", [1e-9, 0.0])
def test_one_of_two_cannot_have_the_other_quarantined(factor, tmp_path):
    spec = spec_of(task="synthetic", rounds=4).model_copy(update={"task": {**spec_of().task, "clients": 2}})
    tiny = with_values(lambda own: {"model": factor * own["model"]})
    deployed = deploy(spec, tmp_path, tamper={1: tiny})
    assert [entry["quarantined"] for entry in deployed.rounds] == [0] * 4


def test_one_of_two_that_turns_hostile_is_refused(tmp_path):
    spec = spec_of().model_copy(update={"task": {**spec_of().task, "clients": 2}})
    huge, said = with_values(lambda own: {"model": -90 * own["model"]}), []

    def turns(content):
        return huge(content) if content[wire.ASK]["round"] > 2 else content

    deployed = deploy(spec, tmp_path, said, tamper={1: turns})
    assert [entry["quarantined"] for entry in deployed.rounds] == [0, 0, 1, 1, 1]
    assert "round 3: client 1 is quarantined: its upload's norm" in said[0]


def test_what_is_usual():
    usual = UsualNorm()
    assert usual.of([1.0, 1e9]) is None  # nobody can tell
    assert usual.of([1.0, 2.0, 1e9]) == 2.0
    assert usual.of([1.0, 2.0, np.nan]) is None
    usual.note([1.0, 3.0])
    assert usual.of([1e-9, 1e-9, 1e-9, 2.0]) == 2.0  # not what three say, but what was usual
    for _ in range(4):
        usual.note([10.0])
    assert usual.of([]) == 10.0
    again = UsualNorm()
    again.load(usual.tensor)
    assert again.past.tolist() == usual.past.tolist()


def test_what_was_usual_is_in_the_checkpoint(tmp_path):
    deployed = deploy(spec_of(), tmp_path)
    norms = deployed.state["remote.norms.upload"]
    simulated = pagefl.run(spec_of())
    assert norms[0] == pytest.approx(float(simulated.state["server.model"].norm()), rel=0.3)


def test_pauses_grow():
    absences, asked = Absences(), []
    for round in range(1, 40):
        if not absences.left_out(7, round):
            asked.append(round)
            absences.note(7, round)
    assert asked == [1, 2, 4, 7, 12, 21, 38]
    absences.heard(7)
    assert not absences.left_out(7, 39)
    assert absences.note(7, 39) is None


def test_a_silent_node_is_left_out_and_asked_again(tmp_path):
    spec, said = spec_of(rounds=8, deploy={"deadline": 0.2}, personal={"when": "never"}), []
    grid = near(spec, tmp_path, silent=[(1, round) for round in range(1, 7)])
    deployed = deploy(spec, tmp_path, said, near=grid)
    assert [round for client, round in grid.asked if client == 1 and round] == [1, 2, 4, 7, 8]
    assert [entry["missing"] for entry in deployed.rounds] == [1] * 6 + [0, 0]
    assert said == [
        "round 2: client 1 does not answer; it is asked again in round 4",
        "round 4: client 1 does not answer; it is asked again in round 7",
    ]


def test_both_sides_have_the_same_version(tmp_path, monkeypatch):
    spec, said = spec_of(deploy={"patience": 0.1, "fewest": 0.7}), []
    grid = near(spec, tmp_path)

    def other(orders, run, step=None):
        content = wire.pack_orders(orders, run, step)
        content[wire.ASK]["version"] = "0.0.9"
        return content

    message = Message(
        other(SimpleNamespace(round=0, sent={}, policy={}), "run"),
        dst_node_id=1000,
        message_type=MessageType.QUERY,
    )
    with pytest.raises(
        UserError, match=f"the server has pagefl 0.0.9, and this node has pagefl {wire.VERSION}"
    ):
        client_app.app(message, grid.contexts[1000])
    push = grid.push_messages

    def old_node(messages):
        names = push(messages)
        for name, message in zip(names, messages, strict=True):
            if message.metadata.dst_node_id == 1002 and not message.content[wire.ASK].get("round"):
                grid.replies[name].content[wire.ASK]["version"] = "0.0.9"
        return names

    monkeypatch.setattr(grid, "push_messages", old_node)
    deployed = deploy(spec, tmp_path, said, near=grid)
    assert (
        said[0]
        == f"node 1002 is turned away: it has another version of pagefl than the server, {wire.VERSION}"
    )
    assert deployed.rounds[-1]["participants"] == 3


class FakeLink:
    """A SuperLink's runtime API that holds one reply, and counts the bytes that are read of its bodies."""

    def __init__(self, content, missing=()):
        message = Message(content, dst_node_id=1, message_type=MessageType.TRAIN)
        message.metadata.__dict__["_message_id"] = message.object_id
        self.objects = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        self.missing, self.read, self.deleted = set(missing) & set(self.objects), 0, []
        proto, tree = message_to_proto(remove_content_from_message(message)), get_object_tree(message)
        self.announced = PullAppMessagesResponse(messages_list=[proto], message_object_trees=[tree])
        client = RuntimeHttpClient("http://superlink")
        client._client = httpx.Client(transport=httpx.MockTransport(self.answer))
        self.grid = SimpleNamespace(
            _runtime_client=client, node=Node(node_id=1), run=SimpleNamespace(run_id=1)
        )

    def answer(self, request):
        kind = request.url.path.rpartition("/")[2]
        if kind == "pull-messages":
            body, self.announced = self.announced, PullAppMessagesResponse()
        elif kind == "pull-object":
            name = PullObjectRequest.FromString(request.content).object_id
            here = name not in self.missing
            body = PullObjectResponse(
                object_found=True, object_available=here, object_content=self.objects[name] if here else b""
            )
        else:
            self.deleted.append(kind)
            body = ConfirmMessageReceivedResponse()
        data = body.SerializeToString()
        return httpx.Response(200, headers={"content-length": str(len(data))}, content=self.read_from(data))

    def read_from(self, data):
        self.read += len(data)
        yield data


def upload(array):
    return RecordDict({wire.ARRAYS: ArrayRecord({"model": array}), wire.NUMBERS: MetricRecord({"size": 3.0})})


def test_a_reply_that_is_due_is_read():
    sent = upload(Array("float32", (930,), wire.RAW, np.arange(930, dtype="<f4").tobytes()))
    link = FakeLink(sent)
    (reply,) = CappedGrid(link.grid, 100_000).pull_messages(["asked"])
    assert reply.content == sent
    assert link.deleted == ["confirm-message-received"]
    assert CappedGrid(FakeLink(sent).grid, 100_000).pull_messages([]) == []


def test_a_reply_that_is_too_large_is_not_read():
    noise = np.random.default_rng(0).bytes(20_000_000)
    link = FakeLink(upload(Array("float32", (5_000_000,), wire.RAW, noise)))
    with pytest.raises(wire.Refused, match="its reply is larger than 100,000 bytes"):
        CappedGrid(link.grid, 100_000).pull_messages(["asked"])
    assert link.read < 100_000
    assert link.deleted == ["confirm-message-received"]


def test_many_small_objects_are_counted_together():
    parts = {
        str(i): Array("float32", (9_000,), wire.RAW, np.full(9_000, i, "<f4").tobytes()) for i in range(9)
    }
    link = FakeLink(RecordDict({wire.ARRAYS: ArrayRecord(parts)}))
    with pytest.raises(wire.Refused, match="larger than"):
        CappedGrid(link.grid, 100_000).pull_messages(["asked"])
    assert link.read < 100_000


def test_a_reply_that_grows_when_it_is_read_is_refused():
    """600 MB of zeros are the same chunk again and again, and travel as one."""
    link = FakeLink(upload(Array("float32", (150_000_000,), wire.RAW, bytes(600_000_000))))
    assert sum(map(len, link.objects.values())) < 8_000_000
    with pytest.raises(wire.Refused, match="larger than 10,000,000"):
        CappedGrid(link.grid, 10_000_000).pull_messages(["asked"])


def test_the_rest_of_a_reply_is_not_waited_for():
    sent = upload(Array("float32", (930,), wire.RAW, bytes(3720)))
    link = FakeLink(sent)
    link.missing = {next(iter(link.objects))}
    grid = CappedGrid(link.grid, 100_000)
    assert grid.pull_messages(["asked"]) == []
    assert grid.pull_messages(["asked"]) == []
    link.missing = set()
    (reply,) = grid.pull_messages(["asked"])
    assert reply.content == sent


def an_executor(tmp_path, said):
    (tmp_path / "secret").write_bytes(b"secret")
    return Executor("node", "127.0.0.1:1", tmp_path / "secret", None, said.append)


def test_an_executor_reports_what_went_wrong_and_goes_on(tmp_path, monkeypatch):
    said, pushed, finished = [], [], []
    working = an_executor(tmp_path, said)
    message = Message(RecordDict(), dst_node_id=1, message_type=MessageType.TRAIN)
    message.metadata.__dict__["_message_id"] = "asked"
    monkeypatch.setattr(executor, "_alive", lambda client: nullcontext())
    monkeypatch.setattr(executor, "pull_task_input", lambda client: (message, None, None, None))
    monkeypatch.setattr(executor, "push_message", lambda client, reply, context: pushed.append(reply))
    monkeypatch.setattr(executor, "push_task_output", lambda *output: finished.append(output[2:]))

    def fail(message, context):
        raise UserError("data = x: it cannot be read")

    working.client_app = fail
    working._try("token")
    assert pushed[0].error.reason == "data = x: it cannot be read"
    assert finished == [("failed", "data = x: it cannot be read")]
    assert said == ["a message could not be answered: data = x: it cannot be read"]
    monkeypatch.setattr(executor, "pull_task_input", raising(httpx.ConnectError("gone")))
    working._try("token")
    assert said[1:] == ["a task could not be finished: ConnectError: gone"]


def raising(error):
    def function(*arguments):
        raise error

    return function


def test_an_executor_that_is_refused_says_so(tmp_path, monkeypatch):
    working, asked = an_executor(tmp_path, []), []

    def refuse(request):
        asked.append(request)
        return httpx.Response(503 if len(asked) == 1 else 401)

    def client(*interceptors):
        found = RuntimeHttpClient("http://node", interceptors=interceptors)
        found._client = httpx.Client(transport=httpx.MockTransport(refuse))
        return found

    monkeypatch.setattr(executor, "AWAY_SECONDS", 0.0)
    monkeypatch.setattr(working, "_client", client)
    with pytest.raises(UserError, match="it refuses this executor; expected a SuperNode or SuperLink"):
        working.work()
    assert len(asked) == 2
    assert any("signature" in name for name in asked[0].headers)


@pytest.mark.parametrize(("content", "sentence"), [(None, "cannot be read"), (b"", "the file is empty")])
def test_an_executor_needs_its_secret(content, sentence, tmp_path):
    if content is not None:
        (tmp_path / "secret").write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        Executor("node", "127.0.0.1:1", tmp_path / "secret", None, print)


def certificate(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_certificates_are_renewed_and_keys_stay(tmp_path, monkeypatch):
    folder = tmp_path / "keys"
    monkeypatch.setattr(keys, "DAYS", 20)
    keys.make(folder, ["fl.example.org", "10.0.0.7"], 2)
    old, before = certificate(folder / keys.CA), {path.name: path.read_bytes() for path in folder.iterdir()}
    assert len(keys.warnings(folder)) == 2
    assert "ends in 19 days" in keys.warnings(folder)[0]
    assert "pagefl deploy keys --renew" in keys.warnings(folder)[0]
    monkeypatch.setattr(keys, "DAYS", 365)
    done = CliRunner().invoke(command_line, ["deploy", "keys", "--renew", "--out", str(folder)])
    assert done.exit_code == 0, done.output
    assert keys.warnings(folder) == []
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {name for name in after if after[name] != before[name]} == {keys.CA, keys.SERVER}
    server = certificate(folder / keys.SERVER)
    server.verify_directly_issued_by(old)  # a node with the old CA certificate goes on
    server.verify_directly_issued_by(certificate(folder / keys.CA))
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["fl.example.org", "10.0.0.7"]
    assert server.not_valid_after_utc > datetime.now(UTC) + timedelta(days=360)
    monkeypatch.setattr(keys, "DAYS", -0.01)
    keys.renew(folder, [])
    assert "has ended" in keys.warnings(folder)[0]
    with pytest.raises(UserError, match="cannot be renewed"):
        keys.renew(tmp_path / "nowhere", [])


def test_the_table_of_keys(tmp_path):
    keys.make(tmp_path / "keys", ["localhost"], 12)
    found = keys.numbers(tmp_path / "keys")
    assert sorted(found.values()) == list(range(12))
    assert all(key.startswith(b"-----BEGIN PUBLIC KEY-----") for key in found)
    (tmp_path / "keys" / "node-x.pub").write_bytes((tmp_path / "keys" / "node-1.pub").read_bytes())
    with pytest.raises(UserError, match="expected node-NUMBER"):
        keys.numbers(tmp_path / "keys")
    (tmp_path / "keys" / "node-x.pub").write_text("ssh-nothing")
    with pytest.raises(UserError, match="expected a public key"):
        keys.numbers(tmp_path / "keys")
    with pytest.raises(UserError, match="it has no public keys"):
        keys.numbers(tmp_path)


def test_nodes_that_died_are_started_again(tmp_path, monkeypatch):
    spec, begun, said = spec_of(), [], []
    local = Local(spec, tmp_path)
    monkeypatch.setattr(local, "start_process", lambda name, *command: begun.append((name, command)))
    (tmp_path / "deploy").mkdir()
    for name in local.starters:
        local.processes[name] = SimpleNamespace(
            poll=lambda name=name: 1 if name.startswith("node-2") else None
        )
    local.revive(said.append)
    local.revive(said.append)  # not at once again
    assert [name for name, _ in begun] == ["node-2", "node-2-executor"]
    assert [line.split(" (")[0] for line in said] == [
        "node-2 has died and is started again",
        "node-2-executor has died and is started again",
    ]
    assert str(local.ports[2]) in begun[0][1]
    assert f"127.0.0.1:{local.ports[2]}" in begun[1][1]


def test_no_secret_is_in_a_command_line(tmp_path, monkeypatch):
    begun = []
    local = Local(spec_of(), tmp_path)
    monkeypatch.setattr(local, "start_process", lambda name, *command: begun.append(command))
    local.keys.parent.mkdir()
    keys.make(local.keys, ["localhost"], CLIENTS)
    for start in local.starters.values():
        start()
    for command in begun:
        assert any(option in command for option in ("--superexec-auth-secret-file", "--secret"))
        assert "--token" not in command
