"""Clients by class of device, in records, reports and the console."""

import json

import numpy as np
import pandas as pd
import pytest

import pagefl
from pagefl.console.clients import ClientRounds
from pagefl.reports import html
from pagefl.runtime import by_class, checkpoint, facts
from pagefl.runtime.by_class import Classes

OPTIONS = {"task": {"name": "synthetic", "clients": 12}, "epochs": 2, "workers": 1, "seed": 3}
PHONES = {"name": "phones", "reference": 1e5, "hours": 24.0, "barrier": "deadline", "deadline": 0.8}
BUDGET = {"name": "page-shared", "budget": 0.9}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("by-class") / "run"
    return pagefl.run(rounds=8, out=out, devices=PHONES, players=BUDGET, **OPTIONS)


def frame(run):
    """Every client in every round, with its class."""
    of = pd.Series(run.classes.of).map(dict(enumerate(run.classes.names)))
    return run.clients.assign(kind=run.clients["client"].map(of))


def test_classes_add_up_to_what_rounds_record(run):
    found = by_class.by_class(run.client_rounds, run.classes)
    sizes = np.array(run.classes.sizes)
    assert (sizes > 0).all()
    assert 0 < sum(entry["late"] for entry in run.rounds) < 12 * 8
    assert run.history["over_budget"].max() > 0
    for entry, numbers in zip(run.rounds, found.numbers, strict=True):
        turns = np.array(numbers["turns"])
        late, over = (np.array(numbers[name], float) for name in ("late", "over"))
        assert np.nansum(late * turns) == pytest.approx(entry["late"])
        assert np.nansum(over * turns) / turns.sum() == pytest.approx(entry["over_budget"])
        accuracy = np.array(numbers["local_accuracy"])
        assert accuracy @ sizes / sizes.sum() == pytest.approx(entry["local_accuracy"])
        seconds = np.array(numbers["seconds"], float)
        assert np.nansum(seconds * turns) == pytest.approx(entry["device_seconds"])


def test_a_summary_is_that_of_all_turns(run):
    found = by_class.by_class(run.client_rounds, run.classes)
    told = by_class.summary(found.numbers, found.classes)
    clients = frame(run)
    turns = clients[clients["seconds"].notna()]
    for name, expected in (
        ("seconds", turns.groupby("kind")["seconds"].mean()),
        ("epochs", turns.groupby("kind")["epochs"].mean()),
        ("late", turns.assign(late=turns["late"].astype(float)).groupby("kind")["late"].mean()),
        ("over", (turns["used"] > 1 + 1e-9).groupby(turns["kind"]).mean()),
    ):
        assert told[name] == pytest.approx([expected[kind] for kind in run.classes.names]), name
    last = clients[clients["round"] == 8].groupby("kind")["local_accuracy"].mean()
    assert told["local_accuracy"] == pytest.approx([last[kind] for kind in run.classes.names])
    medians = turns.groupby(["round", "kind"])["multiplier"].median()
    for place, kind in enumerate(run.classes.names):
        assert told["multiplier"][place] == pytest.approx(medians[:, kind].iloc[-1])


def test_bands_absences_and_budgets_of_which_nothing_is_left():
    classes = Classes(("quick", "slow"), np.array([0, 0, 0, 0, 0, 1]))
    entry = {
        "round": 1,
        "trained": [True, True, True, False, False, True],
        "late": [False, False, False, True, False, False],
        "hostile": [True, False, False, False, False, False],
        "local_accuracy": [1.0, 0.5, 0.5, 0.5, 0.5, None],
        "seconds": [1.0, 2.0, 3.0, 4.0, 99.0, None],  # the fifth was quarantined
        "epochs": [1, 2, 3, 4, 99, None],
        "multiplier": [0.0, 1.0, 2.0, 4.0, 99.0, None],
        "used": [0.5, 1.0, None, 1.5, None, None],
    }
    found = by_class.of_round(entry, classes)
    assert found["turns"] == [4, 0]
    assert found["local_accuracy"] == [0.5, None]
    assert found["seconds"] == [2.5, None]
    assert found["late"] == [0.25, None]
    assert found["over"] == [0.5, None]  # 1.5 times, and without end
    assert [found[f"multiplier{edge}"][0] for edge in (".low", "", ".high")] == [0.75, 1.5, 2.5]
    assert found["used"] == [1.25, None]
    assert found["used.high"] == [None, None]
    told = by_class.summary([found, found], classes)
    assert (told["clients"], told["turns"], told["epochs"]) == ([5, 1], [8, 0], [2.5, None])


def test_a_report_has_a_table_and_a_line_for_each_class(run, tmp_path):
    page = pagefl.report(run.directory, tmp_path / "one.html").read_text()
    assert "Clients by class of device" in page
    assert all(f'<th scope="row">{name}</th>' in page for name in ("fast", "medium", "slow"))
    assert "Multipliers by class" in page
    several = pagefl.report([run, run.directory], tmp_path / "two.html").read_text()
    assert f'<th scope="row">{run.directory}: slow</th>' in several
    assert "Multipliers by class" not in several


def test_names_of_classes_stay_text(run, tmp_path):
    name = "</td><script>alert(1)</script>"
    own = by_class.by_class(run.client_rounds, run.classes._replace(names=(name, "b", name)))
    html.write_report(tmp_path / "page.html", "page", [html.Reported("a", run.rounds, by_class=own)])
    page = (tmp_path / "page.html").read_text()
    assert page.count("<script>alert") == 0
    assert page.count("&lt;script&gt;alert") >= 2


def test_the_console_tells_the_same(run):
    clients = ClientRounds(run.directory)
    assert clients.look() == 8
    told, found = clients.by_class(), by_class.by_class(run.client_rounds, run.classes)
    assert told["names"] == ("fast", "medium", "slow")
    assert told["table"] == by_class.summary(found.numbers, found.classes)
    assert told["lines"]["seconds"][2][-1] == pytest.approx(found.numbers[-1]["seconds"][2], rel=1e-3)


def test_the_console_reads_all_again_when_classes_change(run, tmp_path):
    copied = tmp_path / "run"
    copied.mkdir()
    (copied / "clients.jsonl").write_bytes((run.directory / "clients.jsonl").read_bytes())
    clients = ClientRounds(copied)
    clients.look()
    assert clients.by_class()["names"] == []
    tensors, known = checkpoint.read(run.directory / "checkpoint")
    for names in (["a", "b", "c"], ["c", "b", "a"]):
        checkpoint.save(copied, tensors, {**known, "classes": {**known["classes"], "names": names}})
        clients.look()
        assert [*clients.by_class()["names"]] == names
        assert len(clients.by_class()["rounds"]) == 8


def test_runs_of_before_open_and_go_on(tmp_path):
    out = tmp_path / "run"
    pagefl.run(rounds=2, out=out, devices=PHONES, **OPTIONS)
    tensors, known = checkpoint.read(out / "checkpoint")
    checkpoint.save(out, tensors, {name: value for name, value in known.items() if name != "classes"})
    assert pagefl.load(out).classes is None
    assert "by class" not in pagefl.report(out, tmp_path / "page.html").read_text()
    pagefl.resume(out, rounds=3)
    assert pagefl.load(out).classes.names == ("fast", "medium", "slow")


def test_runs_without_devices_have_no_classes():
    run = pagefl.run(rounds=1, **OPTIONS)
    assert run.classes is None
    assert "late" not in run.clients


@pytest.mark.parametrize(
    "made_up",
    [{"names": ["a"]}, {"names": ["a"], "of": [0.5]}, {"names": ["a" * 41], "of": [0]}, "fast"],
)
def test_classes_that_no_run_writes_are_refused_in_a_sentence(made_up):
    text = json.dumps({"facts": {"round": 1, "classes": made_up}, "same": {}})
    with pytest.raises(ValueError, match=r"^facts\.classes"):
        facts.parse(text)


@pytest.mark.parametrize("made_up", [{"names": ["a"], "of": [1]}, {"names": [], "of": []}])
def test_classes_that_do_not_fit_are_none(made_up):
    assert by_class.classes_of({"classes": made_up}) is None
