"""Which modules travel to the machines of a cluster: a user's own, and none that is installed."""

import sys

import torch

from pagefl.algorithms.fedavg import FedAvg
from pagefl.runtime.own_code import own_modules


def test_own_modules_and_what_they_use(tmp_path, monkeypatch):
    (tmp_path / "my_steps.py").write_text("import numpy\nfrom pathlib import Path\ndef pull(): pass\n")
    (tmp_path / "my_other.py").write_text("import my_steps\n")
    (tmp_path / "my_rule.py").write_text(
        "import pagefl, my_other\nfrom my_steps import pull\nclass Rule(pagefl.Algorithm): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import my_rule

    try:
        assert own_modules(my_rule.Rule(), torch.nn.Linear(1, 1)) == {"my_rule", "my_other", "my_steps"}
        assert own_modules(FedAvg(), torch.nn.Linear(1, 1), None) == set()
    finally:
        for name in ("my_rule", "my_other", "my_steps"):
            del sys.modules[name]
