import json
import math

import pytest

from pagefl.experiments import bench, bench_rounds


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:  # which path is the faster is remembered: not here
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return bench.engine(quick=True)


@pytest.mark.slow  # a process for each workload
def test_every_workload_is_measured(result):
    assert list(result["workloads"]) == ["W", "W2", "W3", "W4"]
    for measured in result["workloads"].values():
        numbers = [measured[name] for name in ("seconds_plain", "seconds_pagefl", "ratio", "ratio_of_best", "memory_mb")]
        assert all(math.isfinite(number) and number > 0 for number in numbers)
        assert measured["ratio"] == pytest.approx(measured["seconds_plain"] / measured["seconds_pagefl"])


@pytest.mark.slow  # a process for each workload
def test_the_result_is_json_and_a_table(result):
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert bench.table(result).row_count == 4


@pytest.mark.slow  # a process for each workload
def test_the_roofline_counts_what_a_round_must_do(result):
    seen, steps, judged = 4 * 5 * 210, 4 * 5 * 42, 4 * (90 + 75)
    assert result["workloads"]["W"]["roofline"]["mflop"] == pytest.approx(31 * 30 * (4 * seen + 5 * steps + 2 * judged) / 1e6)


def test_a_plain_round_of_some_clients_is_scaled_to_all(monkeypatch):
    task, settings = bench.synthetic(0, 4), bench.Settings(**bench.LOGISTIC)
    ticks = iter([0.0, 1.0, 1.5])
    monkeypatch.setattr(bench, "perf_counter", lambda: next(ticks))
    monkeypatch.setattr(bench, "PLAIN_CLIENTS", 2)
    assert bench.plain_round(task.fresh_module(0), task.data, settings) == 1.0 * 4 / 2 + 0.5


def test_agents_are_timed_while_they_learn():
    result = bench_rounds.agents(quick=True)["players"]
    assert set(result) == {"page", "page-shared"}
    for by_size in result.values():
        for found in by_size.values():
            assert sum(found["share"].values()) == pytest.approx(1)
            assert min(found["share"]["client agents"], found["share"]["server agent"]) > 0
