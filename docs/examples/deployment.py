"""A federation of two nodes on this machine: Flower's own processes, with TLS and authentication."""

import subprocess
import tempfile
from pathlib import Path

import pagefl

SPEC = """
rounds = 2
epochs = 1

[task]
name = "synthetic"
"""

with tempfile.TemporaryDirectory() as folder:
    spec, out = Path(folder) / "spec.toml", Path(folder) / "run"
    spec.write_text(SPEC)
    command = ["pagefl", "deploy", "local", str(spec), "--nodes", "2", "--out", str(out)]
    subprocess.run(command, check=True)
    deployed = pagefl.load(out)
    print(deployed)
