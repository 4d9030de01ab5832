"""The machine and the version of the code that made a result."""

import os
import platform
from importlib.metadata import version
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
        "commit": code()["commit"],
    }


def code() -> dict[str, str | None]:
    """Version of pagefl, and the commit if it runs from a clone."""
    return {"version": version("pagefl"), "commit": _commit(Path(__file__).parents[3] / ".git")}


def _commit(git: Path) -> str | None:
    """Of a clone, or of a further work tree of one."""
    try:
        if git.is_file():
            git = git.parent / git.read_text().removeprefix("gitdir:").strip()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        shared = git / (git / "commondir").read_text().strip() if (git / "commondir").exists() else git
        name = head.removeprefix("ref: ")
        if (shared / name).exists():
            return (shared / name).read_text().strip()
        packed = [line.split() for line in (shared / "packed-refs").read_text().splitlines()]
        return next((line[0] for line in packed if line[1:] == [name]), None)
    except OSError:
        return None
