"""Tables by simulated time, against numbers by hand."""

from dataclasses import replace
from math import inf, isnan, sqrt

import numpy as np
import pandas as pd
import pytest

from pagefl.devices.fleet import Phones
from pagefl.experiments import by_time, ledger, speeds
from pagefl.experiments.paper import BUDGETED, TIMES, UNLIMITED
from pagefl.experiments.scales import experiment
from pagefl.experiments.sweep import Found, name_of
from pagefl.reports import figures, tables


def entry(round, seconds, epochs, accuracy, **own):
    return {"round": round, "seconds": seconds, "epochs": epochs, "local_accuracy": accuracy, **own}


def test_speeds_of_clients():
    """Ten clients in four rounds. Client 9 is the slowest, client 0 never trains."""
    speed = np.arange(10.0)
    first = entry(1, [None, *(100 * speed[1:])], [None, *[1] * 9], [None, *[0.1] * 9])
    second = entry(
        2, *([None, *values] for values in ([99.0] * 9, [1] * 9, [0.1] * 9))
    )  # not in the second half
    third = entry(3, [None, *(2 * speed[1:])], [None, *[2] * 9], [None] * 10)  # no accuracy was measured
    few = entry(4, [9.0, 28.0], [1, 4], [0.5, 0.7], client=[9, 8])
    found = speeds.of_clients([first, second, third, few], 16.0)
    # rounds 3 and 4: of 2, 4, …, 18 seconds one is over 16, and so is one of 9 and 28
    assert found["over_deadline"] == pytest.approx(2 / 11)
    # an epoch costs client 8 seven seconds now, and so as many as client 7; a fifth of nine is one
    assert found["local_slowest"] == 0.5
    assert found["local_fastest"] == 0.1
    assert speeds.of_clients([first], 0.0)["over_deadline"] is None
    never = entry(1, [None], [None], [None])
    assert set(speeds.of_clients([never], 1.0).values()) == {None}


def test_the_last_value_known_at_a_time():
    found = by_time.at(np.array([1.0, 2.0]), np.array([0.5, 0.7]), np.array([0.5, 1.0, 1.9, 2.0, 9.0]))
    assert isnan(found[0])
    assert list(found[1:]) == [0.5, 0.5, 0.7, 0.7]


def test_times_to_the_same_accuracy():
    """The other row takes 8 hours for 2, does not get there in 9 for 1, and ours does not on seed 2."""
    rows = [(BUDGETED, 0, 2.0, 5.0), (BUDGETED, 1, 1.0, 5.0), (BUDGETED, 2, inf, 5.0)]
    rows += [("other", 0, 8.0, 9.0), ("other", 1, inf, 9.0), ("other", 2, 3.0, 9.0)]
    frame = pd.DataFrame(rows, columns=["method", "seed", "global_hours", "end"])
    ratio, least, seeds = by_time.sooner(frame, "other", "global")
    assert ratio == pytest.approx(sqrt(8 / 2 * 9 / 1))
    assert (least, seeds) == (True, 2)


def played(spec, pace, rise, slowest=0.5, fastest=0.8):
    """Rounds of `pace` seconds. Accuracies rise by `rise` a round."""
    rounds = [
        {
            "round": number,
            "seconds": 0.1,
            "judged": True,
            "clock": pace * number,
            "global_accuracy": rise * number,
            "local_accuracy": rise * number / 2,
            **dict.fromkeys((*ledger.LAST, "personal_step", "reward_server", "reward_clients")),
        }
        for number in range(1, 11)
    ]
    rounds[-1] |= {"over_deadline": 0.25, "local_slowest": slowest, "local_fastest": fastest}
    return Found(name_of(spec), spec, rounds, None)


@pytest.fixture
def raced():
    """Ten rounds: without a limit 60 seconds each, with a budget 10 and twice the rise. The time is 360."""
    block = experiment("resources", "laptop").blocks[1]
    rows = {name: block.rows[name] for name in (UNLIMITED, "fixed, late dropped", BUDGETED)}
    assert by_time.time_of(block) == 120 * 3
    found = []
    for seed in range(3):
        unlimited, dropped, ours = (own[seed] for own in rows.values())
        found.append(played(unlimited, 60, 0.04 + 0.001 * seed))
        found.append(played(dropped, 30, 0.03, slowest=0.4))
        found.append(played(ours, 10, 0.08, slowest=0.49, fastest=0.8 + 0.01 * seed))
    return replace(block, rows=rows), found


def test_runs_by_time(raced):
    frame = by_time.by_run(*raced).set_index(["method", "seed"])
    assert frame.loc[(UNLIMITED, 0), "global_then"] == pytest.approx(0.24)  # six rounds of 60 seconds
    assert frame.loc[(BUDGETED, 0), "local_then"] == pytest.approx(0.4)  # ended before: its last
    # the unlimited run ends at 0.41: ours is there in round 6, and the other never
    assert frame.loc[(BUDGETED, 1), "global_hours"] * 3600 == pytest.approx(60)
    assert frame.loc[("fixed, late dropped", 1), "global_hours"] == inf
    assert frame.loc[(UNLIMITED, 2), "local_hours"] * 3600 == pytest.approx(600)
    assert by_time.slow_lose(frame.reset_index(), BUDGETED) == pytest.approx(0.01 + 0.01)


def test_tables_by_time(raced):
    by_then, clients, against = tables.of_block(*raced)
    assert by_then.rows[2] == [
        BUDGETED,
        "80.00 ± 0.00",
        "40.00 ± 0.00",
        "0.0157 (3 of 3)",
        "0.0157 (3 of 3)",
        "3",
    ]
    assert by_then.rows[1][3] == "– (0 of 3)"
    assert "after 0.1 simulated hours" in by_then.title
    assert clients.rows[1] == [
        "fixed, late dropped",
        "25.00 ± 0.00",
        "40.00 ± 0.00",
        "80.00 ± 0.00",
        "+10.00",
    ]
    assert against.rows[0][1].startswith("+55.40 [")  # 80 - 24.6
    assert against.rows[0][1].endswith("]: wins")
    # 600 seconds against 50, 60 and 60
    assert against.rows[0][3] == f"{600 / (50 * 60 * 60) ** (1 / 3):.2f} (seeds: 3)"
    assert against.rows[1][3].startswith("at least 5.31")  # 300 seconds against the same


def test_the_figure_by_time(raced):
    block, found = raced
    drawn = figures.time([block], found)
    first = next(line for line in drawn.axes[0].get_lines() if line.get_label() == BUDGETED)
    hours, values = first.get_data()
    assert hours[-1] == pytest.approx(100 / 3600)  # the run ends
    assert values[-1] == pytest.approx(80)
    assert values[len(hours) // 2] == pytest.approx(40)  # after five rounds of ten


def test_the_ledger_keeps_time(raced, tmp_path):
    block, found = raced
    for one in found:
        ledger.append(tmp_path / "ledger", one.name, one.rounds)
    kept = ledger.read(tmp_path / "ledger")
    again = [one._replace(rounds=kept[one.name]) for one in found]
    pd.testing.assert_frame_equal(by_time.by_run(block, again), by_time.by_run(block, found))


@pytest.mark.parametrize("task", ["synthetic", "digits"])
def test_the_budget_is_what_the_median_client_needs(task):
    """Five epochs, computed from sizes and speeds alone. What is left out is the transfer."""
    (specs,) = (
        block.rows[UNLIMITED] for block in experiment("resources", "laptop").blocks if block.task == task
    )
    medians = []
    for spec in specs[:3]:
        sizes = spec.make_task().data.train.sizes.numpy()
        medians.append(np.median(5 * sizes * Phones(spec.seed).of(np.arange(len(sizes))).seconds))
    assert np.mean(medians) == pytest.approx(TIMES[task][2], rel=0.05)
