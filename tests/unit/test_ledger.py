"""The ledger of finished runs: it makes the same tables as the runs, and its runs are not repeated."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pagefl.core.errors import UserError
from pagefl.experiments import ledger, scales, statistics, sweep
from pagefl.reports import reproduce


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A table of two methods at smoke scale, its runs and its ledger."""
    folder = tmp_path_factory.mktemp("table")
    wanted = scales.experiment("table1", "smoke")
    block = wanted.blocks[0]
    rows = {name: block.rows[name] for name in ("fedavg", "ditto")}
    wanted = replace(wanted, blocks=(replace(block, rows=rows),))
    sweep.run_missing(wanted.specs, folder / "runs", 1, kept=folder / ledger.NAME)
    return wanted, folder


@pytest.mark.slow
@pytest.mark.xdist_group("ledger")
def test_tables_are_the_same_without_the_runs(made, tmp_path):
    wanted, folder = made
    whole, _ = reproduce.write(wanted, "smoke", folder, folder / "runs")
    shutil.copy(folder / ledger.NAME, tmp_path / ledger.NAME)
    kept, written = reproduce.write(wanted, "smoke", tmp_path, tmp_path / "runs")
    assert [table.markdown() for table in kept] == [table.markdown() for table in whole]
    assert {"4 of 4 runs finished" in path.read_text() for path in written if path.suffix == ".md"} == {True}


@pytest.mark.slow
@pytest.mark.xdist_group("ledger")
def test_what_is_in_the_ledger_is_not_run_again(made, tmp_path):
    wanted, folder = made
    lines = (folder / ledger.NAME).read_text().splitlines()
    assert len(lines) == len(wanted.specs) == 4
    (tmp_path / ledger.NAME).write_text(lines[0] + "\n" + lines[1] + "\n")
    done = sweep.run_missing(wanted.specs, tmp_path / "runs", 1, kept=tmp_path / ledger.NAME)
    assert done.finished == 4
    assert len(list((tmp_path / "runs").iterdir())) == 2
    names = [json.loads(line)["name"] for line in (tmp_path / ledger.NAME).read_text().splitlines()]
    assert sorted(names) == sorted(sweep.name_of(spec) for spec in wanted.specs)


def rounds(count=60, every=7):
    found = []
    for number in range(1, count + 1):
        judged = number % every == 0 or number == count
        found.append(
            {
                "round": number,
                "seconds": 0.5,
                **dict.fromkeys(ledger.CURVES, number / count if judged else None),
                **dict.fromkeys(ledger.LAST, 0.25 if number == count else None),
                "personal_step": None,
            }
        )
    return found


def test_statistics_survive(tmp_path):
    ledger.append(tmp_path / "ledger", "one", rounds())
    kept = ledger.read(tmp_path / "ledger")["one"]
    spec = scales.experiment("table1", "smoke").specs[0]
    before, after = (statistics.by_run([(spec, of)]) for of in (rounds(), kept))
    assert before.to_json() == after.to_json()
    assert sum(entry["seconds"] for entry in kept) == 30


@pytest.mark.parametrize(
    "line", ["", "{", "[]", "{}", '{"name": 3, "rounds": 1}', '{"name": "a", "rounds": 1e99, "judged": []}']
)
def test_a_damaged_ledger_is_named(line, tmp_path):
    ledger.append(tmp_path / "ledger", "one", rounds())
    with (tmp_path / "ledger").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(UserError, match="line 2 is not a finished run"):
        ledger.read(tmp_path / "ledger")


def test_runs_of_the_committed_ledger_are_found():
    """A setting that came after them leaves their names as they were."""
    kept = Path(__file__).parents[2] / "docs" / "results" / "laptop" / ledger.NAME
    specs = scales.experiment("table1", "laptop").specs
    names = {sweep.name_of(spec) for spec in specs}
    assert "cifar100-patches-fedavg-s0-096221fe63a2" in names & set(ledger.read(kept))
    others = {sweep.name_of(spec.model_copy(update={"optimiser": "deltasgd"})) for spec in specs}
    assert not others & names
    assert len(others) == len(names)


def test_fedavg_with_fine_tuning_is_fedavg_with_the_personal_step():
    from pagefl.experiments.spec import resolve

    assert resolve({"algorithm": "fedavg-ft"}) == resolve({"algorithm": "fedavg"})
    with pytest.raises(UserError, match="means fedavg with the personal step"):
        resolve({"algorithm": "fedavg-ft", "personal": {"when": "never"}})
    with pytest.raises(UserError, match="means fedavg with players fixed"):
        resolve({"algorithm": "fedavg-ft", "players": "page"})
