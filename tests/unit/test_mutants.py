"""A few of the mutants that `benchmarks/mutate_specs.py` and `benchmarks/mutate_data.py` make."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


def program(name: str) -> ModuleType:
    about = importlib.util.spec_from_file_location(
        name, Path(__file__).parents[2] / "benchmarks" / f"{name}.py"
    )
    found = importlib.util.module_from_spec(about)
    about.loader.exec_module(found)
    return found


@pytest.mark.slow
def test_every_mutant_is_a_spec_or_a_sentence():
    counts, failures = program("mutate_specs").mutate(1500)
    assert not failures, "\n".join(failures)
    assert counts["accepted"] > 150  # not all of them are refused for their first letter
    assert counts["refused"] > 500


@pytest.mark.slow
def test_every_damaged_archive_is_read_or_a_sentence():
    """The whole number: python benchmarks/mutate_data.py."""
    pytest.importorskip("datasets")
    counts, failures = program("mutate_data").count(zips=40, arrows=24, published=120)
    assert not failures, "\n".join(failures)
    assert counts["zips refused"] > 20
    assert counts["arrows refused"] > 12
    assert counts["published refused"] > 60
