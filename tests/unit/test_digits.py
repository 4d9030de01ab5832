"""The digits that come with pagefl."""

from contextlib import suppress
from hashlib import sha256

import pytest
import torch

import pagefl
from pagefl import UserError
from pagefl.cli import main
from pagefl.data import digits
from pagefl.experiments.tasks import BUILDERS

# of scikit-learn 1.9.1's digits.csv.gz, pixels and then labels as bytes
SHA256 = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"


def test_the_digits_are_those_of_uci():
    x, y = digits.read()
    assert (x.dtype, tuple(x.shape), y.dtype) == (torch.float32, (1797, 64), torch.int64)
    content = (x * 16).to(torch.uint8).numpy().tobytes() + y.to(torch.uint8).numpy().tobytes()
    assert sha256(content).hexdigest() == SHA256
    assert y.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_every_digit_has_one_place():
    data = BUILDERS["digits"](seed=0).data
    assert len(data.train) == 20
    everything = torch.cat([examples.x for _, examples in data.named()])
    assert sorted(map(tuple, everything.tolist())) == sorted(map(tuple, digits.read().x.tolist()))


def test_too_many_clients_are_refused():
    assert len(digits.federation(224, 0.3, seed=0).train) == 224
    with pytest.raises(UserError, match=r"task.clients = 225: 1797 images .*; expected at most 224"):
        digits.federation(225, 0.3, seed=0)


@pytest.mark.slow
def test_digits_are_learned_without_any_files(monkeypatch, tmp_path):
    monkeypatch.setenv("PAGEFL_DATA", str(tmp_path / "absent"))
    run = pagefl.run(task="digits", algorithm="fedavg", rounds=10, judge_every=10)
    assert run.rounds[-1]["global_accuracy"] > 0.8


def test_nothing_is_to_be_checked(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["pagefl", "data", "check", "digits"])
    with suppress(SystemExit):
        main()
    assert "digits has no original files: its data are generated, come with pagefl" in capsys.readouterr().err
