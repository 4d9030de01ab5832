"""`pagefl bench rounds`: whole rounds by plans against whole rounds row by row."""

import json
import math

import pytest

from pagefl.bench import whole_rounds

pytestmark = [pytest.mark.xdist_group("bench"), pytest.mark.slow]


def test_every_federation_is_measured_on_both_paths():
    result = whole_rounds.rounds(quick=True)
    assert [r["title"] for r in result["federations"]] == [f.title for f in whole_rounds.FEDERATIONS]
    for r in result["federations"]:
        numbers = [value for value in r.values() if isinstance(value, float)]
        assert all(math.isfinite(number) and number > 0 for number in numbers)
        assert r["met"] is None  # toy sizes say nothing about a bar
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert whole_rounds.table(result).row_count == len(result["federations"])
