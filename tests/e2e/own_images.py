"""A user's own images and network, run in a process of its own: `python own_images.py '{"workers": 2}'`.

Prints the path, the arithmetic, what was said, and a hash of everything that was trained.
"""

import hashlib
import json
import os
import signal
import sys

import torch
from torch import nn

CLASSES = 3


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 6, 3, padding=1), nn.GroupNorm(2, 6)
        self.second = nn.Conv2d(6, 6, 3, padding=1)
        self.pool, self.dropout, self.head = nn.AvgPool2d(2), nn.Dropout(0.2), nn.Linear(6 * 9, CLASSES)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        x = self.pool(x + torch.relu(self.second(x)))
        return self.head(self.dropout(x.flatten(1)))


def task():
    from pagefl import FederatedData, Task

    generator = torch.Generator().manual_seed(0)

    def examples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(count, 2, 6, 6, generator=generator), torch.arange(count) % CLASSES

    data = FederatedData([examples(n) for n in (7, 20, 33)], [examples(6) for _ in range(3)], examples(12))
    return Task("own images", Network, data, {"batch_size": 8, "lr": 0.05, "epochs": 2, "momentum": 0.5})


def hidden(*packages: object) -> None:
    """Import the plan as on a machine on which these packages come without a BLAS."""
    kept = [package.__file__ for package in packages]
    for package in packages:
        package.__file__ = "/nowhere/__init__.py"
    from pagefl.core.training.plan import blas  # noqa: F401 (it looks for one when it is imported)

    for package, file in zip(packages, kept, strict=True):
        package.__file__ = file


def main(how: dict) -> dict:
    if how.pop("without_torch", False):
        hidden(torch)
    import pagefl
    from pagefl.core.training.plan import blas

    said: list[str] = []
    killed, resumed = how.pop("killed_in", 0), how.pop("resumed", False)

    def kill(entry: dict) -> None:
        if entry["round"] == killed:
            os.kill(os.getpid(), signal.SIGKILL)

    options = {"task": task(), "observe": kill, "say": said.append}
    if resumed:
        run = pagefl.resume(how["out"], **options)
    else:
        run = pagefl.run(**options, rounds=3, checkpoint_seconds=0.0, **how)
    digest = hashlib.sha256()
    for name, value in sorted(run.state.items()):
        digest.update(name.encode() + value.numpy().tobytes())
    model = run.state["server.model"].tolist()
    return {"said": said, "blas": blas.PROVIDER, "hash": digest.hexdigest(), "model": model}


if __name__ == "__main__":
    print(json.dumps([main(json.loads(how)) for how in sys.argv[1:]]))
