"""The machine and the version of the code that made a result."""

import os
import platform
from pathlib import Path
from typing import Any

import torch


def machine() -> dict[str, Any]:
    try:
        names = [
            line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")
        ]
        cpu = names[0].split(":")[1].strip()
    except (OSError, IndexError):
        cpu = platform.processor()
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "commit": _commit(Path(__file__).parents[3] / ".git"),
    }


def _commit(git: Path) -> str | None:
    try:
        head = (git / "HEAD").read_text().strip()
        return (git / head.removeprefix("ref: ")).read_text().strip() if head.startswith("ref: ") else head
    except OSError:
        return None
