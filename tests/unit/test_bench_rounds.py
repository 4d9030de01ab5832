"""`pagefl bench rounds`: whole rounds by plans against whole rounds row by row."""

import json
import math

import pytest

from pagefl.bench import whole_rounds
from pagefl.bench.whole_rounds import FEDERATIONS

pytestmark = pytest.mark.slow


def assert_measured(found):
    numbers = [value for value in found.values() if isinstance(value, float)]
    assert all(math.isfinite(number) and number > 0 for number in numbers)
    assert found["met"] is None  # toy sizes say nothing about a bar


@pytest.mark.parametrize("number", range(1, len(FEDERATIONS)))
def test_every_federation_is_measured_on_both_paths(number):
    found = whole_rounds.measure(number, quick=True)
    assert found["title"] == FEDERATIONS[number].title
    assert_measured(found)


def test_the_result_is_json_and_a_table(monkeypatch):
    monkeypatch.setattr(whole_rounds, "FEDERATIONS", FEDERATIONS[:1])
    result = whole_rounds.rounds(quick=True)
    (found,) = result["federations"]
    assert found["title"] == FEDERATIONS[0].title
    assert_measured(found)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert whole_rounds.table(result).row_count == 1
