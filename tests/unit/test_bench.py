import json
import math

import numpy as np
import pytest

from pagefl.bench import algorithm_cost, engine, flops, machine_load, plain_loop, round_parts
from pagefl.bench.machine_load import Load
from pagefl.bench.workloads import LOGISTIC, WORKLOADS, Workload
from pagefl.experiments.builders import synthetic
from pagefl.runtime.settings import Settings

MEASURED = (
    *("seconds_plain", "seconds_pagefl", "ratio", "ratio_of_best", "memory_mb"),
    *("cpu_seconds_plain", "cpu_seconds_pagefl", "ratio_of_cpu", "sgemm_gflops"),
    *("share_of_sgemm_plain", "share_of_sgemm_pagefl"),
)


def assert_measured(measured):
    numbers = [measured[name] for name in MEASURED]
    assert all(math.isfinite(number) and number > 0 for number in numbers)
    assert measured["ratio"] == pytest.approx(measured["seconds_plain"] / measured["seconds_pagefl"])
    assert measured["met"] is None  # toy sizes say nothing about a bar
    assert measured["load"]["cpu_seconds"] > 0


@pytest.mark.slow  # deep models
@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_is_measured(name, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # which path is the faster is remembered: not here
    monkeypatch.setattr(flops, "SIDE", 64)  # a small product has a speed too
    measured = engine.measure(name, quick=True)
    assert_measured(measured)
    if name == "W":
        seen, steps, judged = 4 * 5 * 210, 4 * 5 * 42, 4 * (90 + 75)
        must = 31 * 30 * (4 * seen + 5 * steps + 2 * judged)
        assert measured["roofline"]["mflop"] == pytest.approx(must / 1e6)


@pytest.mark.slow  # a process
def test_the_result_is_json_and_a_table(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # two threads of a small loop mostly wait for one another
    monkeypatch.setattr(engine, "WORKLOADS", {"W": WORKLOADS["W"]})
    result = engine.engine(quick=True)
    assert list(result["workloads"]) == ["W"]
    assert_measured(result["workloads"]["W"])
    assert result["load"] == result["workloads"]["W"]["load"]
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert engine.table(result).row_count == 1


def test_figures_are_medians_of_wall_and_cpu_time():
    plain, ours = np.array([[4.0, 8.0], [2.0, 6.0], [9.0, 9.0]]), np.array([[1.0, 2.0], [0.5, 1.0]])
    found = engine._figures(plain, ours, work=30e9, sgemm=100e9)
    assert (found["seconds_plain"], found["seconds_pagefl"], found["ratio_of_best"]) == (4.0, 0.75, 2.0 / 0.5)
    assert (found["cpu_seconds_plain"], found["cpu_seconds_pagefl"]) == (8.0, 1.5)
    assert found["share_of_sgemm_pagefl"] == pytest.approx(30 / 1.5 / 100)
    assert found["ratio_of_cpu"] == pytest.approx(8.0 / 1.5)


def test_a_plain_round_of_some_clients_is_scaled_to_all(monkeypatch):
    task, settings = synthetic(0, 4), Settings(**LOGISTIC)
    ticks = iter(np.array([[0.0, 0.0], [1.0, 2.0], [1.5, 2.7]]))  # wall and CPU
    monkeypatch.setattr(plain_loop, "now", lambda: next(ticks))
    monkeypatch.setattr(plain_loop, "PLAIN_CLIENTS", 2)
    seconds = plain_loop.plain_round(task.fresh_module(0), task.data, settings)
    assert seconds.tolist() == pytest.approx([1.0 * 4 / 2 + 0.5, 2.0 * 4 / 2 + 0.7])


def test_agents_are_timed_while_they_learn():
    result = round_parts.agents(quick=True)["players"]
    assert set(result) == {"page", "page-shared"}
    for by_size in result.values():
        for found in by_size.values():
            assert sum(found["share"].values()) == pytest.approx(1)
            assert min(found["share"]["client agents"], found["share"]["server agent"]) > 0


def stat(monkeypatch, tmp_path, *readings):
    """(seconds, /proc/stat, own CPU seconds) at the start and at the end of a measurement, on two cores."""
    clock, times = iter([r[0] for r in readings]), iter([(0.0, 0.0, r[2], 0.0, 0.0) for r in readings])
    texts = iter([r[1] for r in readings])

    class Stat:
        def read_text(self):
            return next(texts)

    monkeypatch.setattr(machine_load, "STAT", Stat())
    monkeypatch.setattr(machine_load, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(machine_load.os, "times", lambda: next(times))
    monkeypatch.setattr(machine_load.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(machine_load.os, "sysconf", lambda name: 100)
    return machine_load.Watch().stop()


#      user nice system idle iowait irq softirq steal guest guest_nice, in hundredths of a second
BEFORE = "cpu  1000 0 500 9000 70 0 30 0 0 0\ncpu0 1 2 3\n"


@pytest.mark.parametrize(
    ("after", "own", "others", "quiet"),
    [
        # busy 16.05 s of 20, of which 16 are ours
        ("cpu  2500 0 600 9395 170 0 35 0 0 0", 16.0, 0.0025, True),
        ("cpu  2500 300 600 9395 170 0 35 0 0 0", 16.0, 0.1525, False),  # somebody's niced program
        ("cpu  2500 0 600 9395 170 0 35 400 0 0", 16.0, 0.2025, False),  # another virtual machine
        ("cpu  1000 0 500 9000 70 0 30 0 0 0", 16.0, None, None),  # a sandbox whose figures stand still
        ("no such line", 16.0, None, None),
    ],
)
def test_what_others_take_is_all_but_ours(monkeypatch, tmp_path, after, own, others, quiet):
    seen = stat(monkeypatch, tmp_path, (5.0, BEFORE, 1.0), (15.0, after, 1.0 + own))
    assert seen.others == (others if others is None else pytest.approx(others))
    assert seen.quiet is quiet
    assert (seen.seconds, seen.cpu_seconds) == (10.0, own)


def made_up(others, quick=False):
    quiet = None if others is None else others < machine_load.QUIET
    seen = Load(quiet, others, 10.0, 16.0, 3.2, 2)._asdict()
    row = {
        "title": "logistic",
        "seconds_plain": 1.0,
        "seconds_pagefl": 1e-4,
        "ratio": 10913.0,
        "ratio_of_best": 10913.0,
        "cpu_seconds_plain": 2.0,
        "cpu_seconds_pagefl": 2e-4,
        "ratio_of_cpu": 10000.0,
        "share_of_sgemm_plain": 0.01,
        "share_of_sgemm_pagefl": 0.1,
    }
    row |= {"bar": 100, "memory_mb": 1.0, "load": seen, "met": True if quiet and not quick else None}
    row["roofline"] = {"gflops": 1.0, "share_of_peak": 0.1}
    machine = {"cpu": "x", "cores": 2, "torch": "2"}
    return {"quick": quick, "machine": machine, "load": seen, "workloads": {"W": row}}


@pytest.mark.parametrize(
    ("others", "quick", "met", "words"),
    [
        (
            0.01,
            False,
            "yes",
            "quiet: yes (other processes took 1% of the machine; load average 3.2 on 2 cores)",
        ),
        (0.01, True, "–", "quiet: yes"),
        (0.43, False, "–", "quiet: no (other processes took 43% of the machine"),
        (None, False, "–", "quiet: unknown"),
    ],
)
def test_no_bar_is_met_on_a_busy_machine(others, quick, met, words):
    table = engine.table(made_up(others, quick))
    assert list(table.columns[-1].cells) == [met]
    assert words in table.caption


def test_a_workload_is_one_entry():
    """Nothing but the table names a workload: a new one is measured and shown, here without the others."""
    result = made_up(0.01)
    row = {name: value for name, value in result["workloads"].pop("W").items() if name != "roofline"}
    table = engine.table({**result, "workloads": {"new": row}})
    assert list(table.columns[0].cells) == ["new"]
    assert "roofline" not in table.caption


def test_measuring_judges_only_what_is_quiet(monkeypatch):
    """The same figures, once beside others."""
    monkeypatch.setattr(
        engine,
        "play",
        lambda task, algorithm, settings, observe: [observe({}) for _ in range(settings.rounds)],
    )
    monkeypatch.setattr(engine, "plain_round", lambda *_: np.array([1e9, 1e9]))
    monkeypatch.setattr(engine, "WARM", 1)
    small = Workload("toy", 1.0, lambda quick: synthetic(0, 4), LOGISTIC, 1, 1)
    monkeypatch.setitem(WORKLOADS, "toy", small)
    for quiet, quick, met in (
        (True, False, True),
        (True, True, None),
        (False, False, None),
        (None, False, None),
    ):
        monkeypatch.setattr(
            machine_load.Watch, "stop", lambda self, quiet=quiet: Load(quiet, 0.0, 1.0, 1.0, 0.0, 2)
        )
        assert engine.measure("toy", quick)["met"] is met


def test_the_least_quiet_measurement_speaks_for_all():
    loads = [Load(others < machine_load.QUIET, others, 1.0, 1.0, 0.0, 2) for others in (0.01, 0.3, 0.02)]
    assert machine_load.worst(loads).others == 0.3
    assert machine_load.worst([loads[0], Load(None, None, 1.0, 1.0, 0.0, 2)]).quiet is None


def test_the_other_tables_tell_too():
    seen = {"load": Load(False, 0.43, 10.0, 16.0, 3.2, 2)._asdict()}
    tables = (
        algorithm_cost.table({**seen, "algorithms": {}}),
        round_parts.agents_table({**seen, "players": {}}),
        round_parts.table5_table({**seen, "clients": {"4": {"share": {}, "ms_per_byte": {}}}}),
    )
    assert all("quiet: no" in table.caption for table in tables)
