"""Rows that are copied past the cache."""

import pytest
import torch

from pagefl.core import large_rows


@pytest.mark.parametrize(("first", "count"), [(0, 64), (1, 64), (3, 61), (7, 9), (5, 4), (2, 1)])
def test_a_copy_is_whole_and_touches_nothing_else(monkeypatch, first, count):
    monkeypatch.setattr(large_rows, "LARGE", 0)
    row, home = torch.arange(count) + 1.0, torch.zeros(80)
    large_rows.copy(row, home[first : first + count])
    assert home[first : first + count].equal(row)
    assert home.sum() == row.sum()


def test_other_rows_are_copied_too(monkeypatch):
    monkeypatch.setattr(large_rows, "LARGE", 0)
    wide, home = torch.arange(20.0, dtype=torch.float64), torch.zeros(10)
    large_rows.copy(wide[::2], home)
    assert home.equal(wide[::2].float())
