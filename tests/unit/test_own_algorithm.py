"""A mistake in a user's own algorithm ends in one sentence that names its class, the hook and what was
expected.
"""

import pytest
import torch
from federations import data, task

import pagefl
from pagefl import Algorithm, Local


class Deltas(Algorithm):
    """FedAvg, written with differences."""

    def local(self, clients):
        rows = clients.train(clients.sent["model"])
        return Local(upload={"delta": rows - clients.sent["model"]}, personal=rows)

    def aggregate(self, server, uploads, weights, share):
        return {"model": server["model"] + weights @ uploads["delta"]}


class DeltasToLookAt(Deltas):
    def candidates(self, sent, upload):
        return sent + upload["delta"]


def play(algorithm, **settings):
    return pagefl.run(task=task("mlp"), algorithm=algorithm, rounds=2, **settings)


# with one client at a time, one model for all looks like a model each
@pytest.mark.parametrize("chunk", [1, 4])
def test_a_server_that_looks_needs_candidates(chunk, tmp_path):
    with pytest.raises(pagefl.UserError) as refusal:
        play(Deltas(), players="page", chunk=chunk, out=tmp_path / "run")
    assert "Deltas uploads ['delta']" in str(refusal.value)
    assert "define `candidates(self, sent, upload)` in Deltas" in str(refusal.value)
    assert not (tmp_path / "run").exists()


def test_candidates_let_the_server_look():
    ours, fedavg = (play(algorithm, players="page") for algorithm in (DeltasToLookAt(), "fedavg"))
    assert torch.allclose(ours.state["server.model"], fedavg.state["server.model"], atol=1e-5)
    assert ours.client_rounds[-1]["server_state"] == pytest.approx(
        fedavg.client_rounds[-1]["server_state"], abs=0.05
    )


def test_other_players_need_no_candidates():
    ours, fedavg = (play(algorithm) for algorithm in (Deltas(), "fedavg"))
    assert torch.allclose(ours.state["server.model"], fedavg.state["server.model"], atol=1e-6)


def test_an_algorithm_may_divide_by_its_epochs():
    class Mean(Algorithm):
        def local(self, clients):
            if not bool(clients.epochs.all()):
                raise ZeroDivisionError
            rows = clients.train(clients.sent["model"])
            pace = (rows - clients.sent["model"]) / clients.epochs[:, None]
            return Local(upload={"model": rows, "pace": pace}, personal=rows)

    assert torch.equal(play(Mean()).state["server.model"], play("fedavg").state["server.model"])


def test_nothing_to_upload_is_nothing_to_look_at():
    assert len(play("local", players="page").rounds) == 2


def local(make):
    """A class whose local() makes this of the trained rows."""
    return type(
        "Mine",
        (Algorithm,),
        {"local": lambda self, clients: make(clients, clients.train(clients.sent["model"]))},
    )


def declaring(make):
    return type("Mine", (local(make),), {"same_rows": (("upload.model", "personal"),)})


def hook(name, answer):
    return type("Mine", (Algorithm,), {name: answer})


def keeping(kept):
    class Mine(Algorithm):
        def client_state(self, row, layout):
            return {"own": torch.zeros(3)}

        def local(self, clients):
            rows = clients.train(clients.sent["model"])
            return Local({"model": rows}, rows, kept(rows))

    return Mine


later = lambda clients: clients.round > 0  # noqa: E731  (the trial that finds out what is uploaded is round 0)
MISTAKES = {
    "local returned a Tensor; expected pagefl.Local(": local(lambda c, rows: rows),
    "local returned a NoneType": local(lambda c, rows: None),
    "local returned upload Tensor; expected a dict of names and tensors": local(
        lambda c, rows: Local(rows, rows)
    ),
    "local returned upload 'loss': a float": local(lambda c, rows: Local({"model": rows, "loss": 0.5}, rows)),
    "local returned upload 'model' of shape [59]; expected a row for each client": local(
        lambda c, rows: Local({"model": rows[0]}, rows)
    ),
    "local returned upload 'steps' of shape [1]": local(
        lambda c, rows: Local({"model": rows, "steps": rows[:, 0]}, rows)
    ),
    # Of one row for many clients torch would silently make many.
    "local returned upload 'mean' of shape [1, 59]; expected a row for each client, [5, 59]": local(
        lambda c, rows: Local({"model": rows, "mean": rows.mean(0, keepdim=True)}, rows)
    ),
    "local returned personal [59]; expected [clients, columns] = [1, 59]": local(
        lambda c, rows: Local({"model": rows}, rows[0])
    ),
    "local returned personal [1, 20]": local(lambda c, rows: Local({"model": rows}, rows[:, :20])),
    "local returned personal dict": local(lambda c, rows: Local({"model": rows}, {"model": rows})),
    "local returned uploads ['extra', 'model']; expected ['model'], as upload_state or round 1 has it": local(
        lambda c, rows: Local({"model": rows, **({"extra": rows} if later(c) else {})}, rows)
    ),
    "local returned uploads []; expected ['model']": local(
        lambda c, rows: Local({} if later(c) else {"model": rows}, rows)
    ),
    "same_rows says that upload.model equals other rows, but local() made it differ": declaring(
        lambda c, rows: Local({"model": rows}, rows * 2)
    ),
    "local returned kept ['control']; expected names that client_state returns: []": local(
        lambda c, rows: Local({"model": rows}, rows, {"control": rows})
    ),
    "local returned kept 'own' of shape [1, 59]; expected [1, 3]": keeping(lambda rows: {"own": rows}),
    "local returned kept 'own' of shape [3]": keeping(lambda rows: {"own": torch.zeros(3)}),
    "client_state returned 'own' of shape []; expected one row [numbers]": hook(
        "client_state", lambda self, row, layout: {"own": torch.tensor(0.0)}
    ),
    "client_state returned NoneType; expected a dict": hook("client_state", lambda self, row, layout: None),
    "server_state returned ['momentum'] without 'model'": hook(
        "server_state", lambda self, row: {"momentum": row}
    ),
    "server_state returned 'model' of shape [1, 59]": hook(
        "server_state", lambda self, row: {"model": row[None]}
    ),
    "send returned [] without 'model'": hook("send", lambda self, server: {}),
    "aggregate returned ['velocity']; expected ['model'], as server_state has it": hook(
        "aggregate", lambda self, server, uploads, weights, share: {"velocity": server["model"]}
    ),
    "aggregate returned Tensor; expected a dict": hook(
        "aggregate", lambda self, server, uploads, weights, share: weights @ uploads["model"]
    ),
    "aggregate returned 'model' as torch.float32 [5, 59]; expected torch.float32 [59]": hook(
        "aggregate", lambda self, server, uploads, weights, share: {"model": uploads["model"]}
    ),
    "aggregate returned 'model' as torch.float64 [59]": hook(
        "aggregate", lambda self, server, uploads, weights, share: {"model": server["model"].double()}
    ),
    "adapt returned a tensor [59]; expected a model for each client": hook(
        "adapt", lambda self, c: c.sent["model"][0]
    ),
    "candidates returned a tensor [1, 59]; expected a model for each client, [clients, columns] = [5, "
    "59]": hook("candidates", lambda self, sent, upload: sent),
}


@pytest.mark.parametrize(("words", "kind"), MISTAKES.items(), ids=[words.split(";")[0] for words in MISTAKES])
def test_mistakes_are_named(words, kind):
    with pytest.raises(pagefl.UserError) as refusal:
        play(kind(), players="page")
    assert str(refusal.value).startswith("Mine."), refusal.value
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_mistake_in_a_worker_is_the_same_sentence():
    kind = MISTAKES["local returned uploads []; expected ['model']"]
    with pytest.raises(pagefl.UserError, match=r"^Mine.local returned uploads \[\]"):
        play(kind(), workers=2)


def test_a_dataset_of_many_labels_names_whose_are_beyond():
    more = data()
    more.test.y[more.test.starts[2]] = 9
    with pytest.raises(
        pagefl.UserError, match=r"client 2 \(test\): y has label 9, but the module answers with 4 classes"
    ):
        pagefl.run(task=pagefl.Task("own", task().module, more), rounds=1)


class InPlace(Algorithm):
    """Halves what it was sent, for all clients after the first one too."""

    def __init__(self, hook: str) -> None:
        self.hook = hook

    def local(self, clients):
        if self.hook == "local":
            clients.sent["model"].mul_(0.5)
        return super().local(clients)

    def adapt(self, clients):
        if self.hook == "adapt":
            clients.sent["model"][:, :3] = 0.0
        return super().adapt(clients)


@pytest.mark.parametrize("hook", ["local", "adapt"])
@pytest.mark.parametrize("options", [{"chunk": 1}, {"chunk": 4}, {"chunk": 1, "workers": 2}], ids=str)
def test_what_was_sent_is_not_written_to(hook, options):
    """With one client at a time, torch itself would let it."""
    with pytest.raises(pagefl.UserError, match=r"^InPlace writes into a tensor that its clients share"):
        play(InPlace(hook), **options)
