"""Metrics of the user's own. The oracle: the models that a run returns, on the task's own data."""

import numpy as np
import pytest
import torch
from federations import task

import pagefl
from pagefl import Metric


def accuracy(logits, labels):
    return (logits.argmax(1) == labels).double().mean()


def confidence(logits, labels):
    return float(logits.softmax(1).amax(1).mean())


@pytest.mark.parametrize("algorithm", ["fedavg", "ditto"])
def test_a_metric_is_measured_where_accuracy_is(algorithm):
    metrics = [Metric("hits", accuracy), Metric("confidence", confidence)]
    run = pagefl.run(task=task(), algorithm=algorithm, rounds=3, participation=0.6, metrics=metrics)
    for record in run.rounds:
        assert record["global_hits"] == pytest.approx(record["global_accuracy"], abs=1e-12)
        assert record["local_hits"] == pytest.approx(record["local_accuracy"], abs=1e-12)
    held = task().data
    with torch.no_grad():
        own = [
            float(run.personal(i)(held.test.client(i)[0]).softmax(1).amax(1).mean())
            for i in range(len(held.train))
        ]
    assert run.rounds[-1]["local_confidence"] == pytest.approx(np.mean(own), rel=1e-5)


def test_it_changes_nothing_else_and_workers_do_not_matter():
    plain = pagefl.run(task=task(), rounds=2)
    for workers in (1, 2):
        run = pagefl.run(task=task(), rounds=2, workers=workers, metrics=[Metric("hits", accuracy)])
        assert torch.equal(run.state["server.model"], plain.state["server.model"])
        assert run.rounds[-1]["global_hits"] == plain.rounds[-1]["global_accuracy"]


def test_what_is_not_defined_is_left_out():
    """As an AUC is, for a client with one class only."""

    values = iter([np.nan, 1.0, 2.0, 3.0, 6.0, 9.0])  # five clients, then the server
    last = pagefl.run(task=task(), rounds=1, metrics=[Metric("odd", lambda *_: next(values))]).rounds[-1]
    assert (last["local_odd"], last["global_odd"]) == (3.0, 9.0)


def test_only_judged_rounds_have_it(tmp_path):
    metrics = [Metric("hits", accuracy)]
    run = pagefl.run(task=task(), rounds=3, judge_every=2, metrics=metrics, out=tmp_path / "run")
    assert ["global_hits" in record for record in run.rounds] == [False, True, True]
    assert pagefl.load(tmp_path / "run", task=task()).history["local_hits"].notna().sum() == 2
    resumed = pagefl.resume(run, rounds=4, metrics=metrics)
    assert resumed.rounds[-1]["global_hits"] == resumed.rounds[-1]["global_accuracy"]


@pytest.mark.parametrize(
    ("words", "metrics"),
    [
        ("metric 'accuracy': expected a name of its own", [Metric("accuracy", accuracy)]),
        ("metric 'my metric'", [Metric("my metric", accuracy)]),
        ("metric 'hits'", [Metric("hits", accuracy), Metric("hits", accuracy)]),
        ("metric rows: it returned ", [Metric("rows", lambda logits, labels: logits)]),
    ],
)
def test_others_are_refused_in_one_sentence(words, metrics):
    with pytest.raises(pagefl.UserError) as refusal:
        pagefl.run(task=task(), rounds=1, metrics=metrics)
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("executor = ray, expected local", {"executor": "ray"}),
        ("FedRecon fits the shared model to data", {"algorithm": "fedrecon"}),
    ],
)
def test_where_they_cannot_be_measured(words, settings):
    with pytest.raises(pagefl.UserError, match=words):
        pagefl.run(task="synthetic-mlp", clients=3, rounds=1, metrics=[Metric("hits", accuracy)], **settings)
