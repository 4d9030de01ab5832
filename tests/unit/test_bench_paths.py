"""`pagefl bench paths`: plans against training row by row."""

import json
import math

import pytest
import torch

from pagefl.bench import flops, training_paths
from pagefl.bench.machine_load import Load, Watch
from pagefl.bench.natural_rows import NaturalRows
from pagefl.bench.training_paths import COMPARISONS, Comparison
from pagefl.bench.workloads import images, noise
from pagefl.core.training.model import RowModel
from pagefl.models.cnn import cnn
from pagefl.models.resnet import resnet18
from pagefl.runtime.simulation import one_numeric_mode


@pytest.mark.parametrize("make", [lambda: resnet18(5, width=4), lambda: cnn(5)])
def test_the_control_trains_as_rows_do_without_a_copy_of_its_weights(make):
    task = noise(make, images, 5, clients=1, size=6)
    module, train = task.fresh_module(0), task.data.train
    descent, client = training_paths._epoch(train, 4), torch.tensor([0])
    natural, rows = NaturalRows(module), RowModel(module)
    own, other = (model.layout.row(module)[None] for model in (natural, rows))
    for name, value in natural.layout.views(own[0]).items():
        assert value.equal(dict(module.named_parameters())[name])
        assert value.is_contiguous()
        assert value.untyped_storage().data_ptr() == own.untyped_storage().data_ptr()
    moved = natural.layout.views(natural.descend(own, descent).rows[0])
    expected = rows.layout.views(rows.descend(other, descent).rows[0])
    for name, value in moved.items():
        torch.testing.assert_close(value, expected[name])
    assert natural.score(own, train, client).loss == pytest.approx(rows.score(other, train, client).loss)


def assert_measured(found):
    numbers = [value for value in found.values() if isinstance(value, float)]
    assert all(math.isfinite(number) and number > 0 for number in numbers)
    assert found["met"] is None  # toy sizes say nothing about a bar


@pytest.mark.slow  # large models
@pytest.mark.parametrize("number", range(len(COMPARISONS)))
def test_every_comparison_is_measured(number, monkeypatch):
    monkeypatch.setattr(flops, "SIDE", 64)  # a small product has a speed too
    monkeypatch.setattr(training_paths, "keep_memory", lambda: None)  # it would last
    comparison = COMPARISONS[number]
    with one_numeric_mode():
        found = training_paths.measure(number, quick=True)
    about = {(r["title"], r["batch_size"], r["work"]): r["bar"] for r in found}
    expected = {(comparison.title, comparison.batch_size, work): bar for work, bar in comparison.bars.items()}
    assert about == expected
    for r in found:
        assert_measured(r)


@pytest.mark.slow  # a process
def test_the_result_is_json_and_a_table(monkeypatch):
    monkeypatch.setattr(training_paths, "COMPARISONS", COMPARISONS[:1])
    result = training_paths.paths(quick=True)
    assert [r["title"] for r in result["comparisons"]] == [COMPARISONS[0].title] * 2
    for r in result["comparisons"]:
        assert_measured(r)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert training_paths.table(result).row_count == 2


def test_ratios_are_medians_of_turns():
    turns = [[1.0, 4.0], [2.0, 6.0], [1.0, 9.0]]  # CPU seconds of plan and rows: 4, 3 and 9 times
    found = training_paths._figures(turns, examples=30, flop=10, sgemm=1000.0)
    assert found["ratio"] == 4.0
    assert (found["samples_per_second_plan"], found["samples_per_second_rows"]) == (30.0, 5.0)
    assert (found["share_of_sgemm_plan"], found["share_of_sgemm_rows"]) == (0.3, 0.05)


@pytest.mark.parametrize(
    ("quiet", "quick", "bar", "met"),
    [(True, False, 0.0, True), (True, False, 1e9, False), (True, True, 0.0, None), (False, False, 0.0, None)],
)
def test_no_bar_is_met_on_a_busy_machine(monkeypatch, quiet, quick, bar, met):
    toy = Comparison("toy", lambda: resnet18(100, width=4), 10, {"evaluation": bar})
    monkeypatch.setattr(training_paths, "COMPARISONS", [toy])
    monkeypatch.setattr(training_paths, "EXAMPLES", 20)
    monkeypatch.setattr(training_paths, "TURNS", 1)
    monkeypatch.setattr(training_paths, "keep_memory", lambda: None)  # it would last
    monkeypatch.setattr(Watch, "stop", lambda self: Load(quiet, 0.0, 1.0, 1.0, 0.0, 2))
    with one_numeric_mode():
        (found,) = training_paths.measure(0, quick)
    assert found["met"] is met


def test_the_table_tells_how_quiet_the_machine_was():
    load = Load(False, 0.43, 10.0, 16.0, 3.2, 2)._asdict()
    machine = {"cpu": "x", "torch": "2"}
    table = training_paths.table({"load": load, "machine": machine, "quick": False, "comparisons": []})
    assert "quiet: no" in table.caption
