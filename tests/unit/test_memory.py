"""Equal rows are held once, and what memory has no room for lies in a file; neither shows."""

import pytest
import torch
from federations import QUICK, Federation, task

import pagefl
from pagefl.algorithms import ALGORITHMS
from pagefl.runtime import workers
from pagefl.runtime.settings import Settings


def matrices(name: str) -> int:
    """How many rows of a whole model a client takes."""
    federation = Federation.of_task(task("mlp"), ALGORITHMS[name](), Settings(path="stacked"))
    held = [federation.personal, *federation.uploads.values(), *federation.kept.values()]
    return len({rows.data_ptr() for rows in held if rows.shape[1:] == federation.personal.shape[1:]})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fedavg", 1),
        ("fedprox", 1),
        ("local", 1),
        ("feddyn", 2),
        ("ditto", 2),
        ("fedper", 1),
        ("fedrep", 1),
        ("fedbabu", 1),
        ("perfedavg", 2),
        ("apfl", 3),
        ("pfedme", 2),
        ("fedrod", 2),
        ("scaffold", 3),
    ],
)
def test_no_method_holds_a_model_twice(name, expected):
    assert matrices(name) == expected


@pytest.mark.parametrize("name", ["fedavg", "ditto", "scaffold"])
@pytest.mark.parametrize("count", [1, 2])
def test_rows_in_a_file_give_the_same_bits(name, count, monkeypatch, tmp_path):
    said: list[str] = []
    options = {"algorithm": {"name": name, **QUICK.get(name, {})}, "workers": count}
    usual = pagefl.run(task=task("mlp"), **options)
    monkeypatch.setattr(workers, "available_memory", lambda: 0)
    filed = pagefl.run(task=task("mlp"), **options, out=tmp_path / "new" / "run", say=said.append)
    assert any("rows lie in a file" in sentence for sentence in said)
    assert {key: value.numpy().tobytes() for key, value in usual.state.items()} == {
        key: value.numpy().tobytes() for key, value in filed.state.items()
    }
    assert not [path for path in (tmp_path / "new" / "run").iterdir() if path.name.startswith("tmp")]


def test_a_model_kept_and_judged_by_is_stored_once(tmp_path):
    """Ditto's personal models are what its clients keep."""
    never = {"when": "never"}
    run = pagefl.run(task=task("mlp"), algorithm="ditto", personal=never, out=tmp_path / "run")
    again = pagefl.load(tmp_path / "run", task=task("mlp"))
    assert torch.equal(again.state["kept.personal"], run.state["clients.personal"])
    width = run.state["clients.personal"].shape[1]
    # five clients and the server
    assert (tmp_path / "run" / "checkpoint").stat().st_size < 4 * width * (5 + 1) + 4000


def test_available_memory_is_a_number_of_bytes():
    assert 10**7 < workers.available_memory() < 10**14
