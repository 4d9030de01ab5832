"""A few of the mutants that `benchmarks/mutate_specs.py` makes."""

import importlib.util
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "benchmarks" / "mutate_specs.py"


@pytest.mark.slow
def test_every_mutant_is_a_spec_or_a_sentence():
    about = importlib.util.spec_from_file_location("mutate_specs", SOURCE)
    mutants = importlib.util.module_from_spec(about)
    about.loader.exec_module(mutants)
    counts, failures = mutants.mutate(1500)
    assert not failures, "\n".join(failures)
    assert counts["accepted"] > 150  # not all of them are refused for their first letter
    assert counts["refused"] > 500
