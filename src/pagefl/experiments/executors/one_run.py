"""One run of a sweep, in a process of its own. It goes on from the checkpoint in its directory."""

import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from pagefl.core import cores
from pagefl.core.errors import UserError
from pagefl.experiments import spec as specs
from pagefl.runtime.directory import InUse, RunDirectory
from pagefl.runtime.loop import play

FINISHED = "finished"  # a file in the run's directory


class Task(NamedTuple):
    """All that a process needs to know of a run: text and numbers, none of the user's objects."""

    name: str
    spec_text: str
    path: str  # the run's directory
    workers: int  # as the spec says: 0 if it leaves it open
    gpu: bool


class Ending(NamedTuple):
    """How a task ended. A run that another process is working on is neither finished nor a problem."""

    finished: bool = False
    problem: str | None = None  # what went wrong, in a sentence
    stopped: bool = False  # by a signal, after its round
    node: str = ""  # the machine, if it may be another one


def attempt(spec_text: str, folder: str, workers: int) -> Ending:
    path = Path(folder)
    try:
        spec = specs.of_text(spec_text).model_copy(update={"workers": workers})
        done = play(
            spec.make_task(),
            spec.make_algorithm(),
            spec,
            spec.make_players(),
            RunDirectory(path, spec.toml()),
        )
        if done.over:
            (path / FINISHED).touch()
        return Ending(finished=done.over, stopped=done.stopped_by is not None)
    except InUse:  # another sweep is running it
        return Ending()
    except UserError as error:
        return Ending(problem=str(error))
    except OSError as error:
        return Ending(
            problem=f"{error.filename or path}: {error.strerror or error}; what is written is not lost"
        )
    except Exception as error:  # a bug in one run must not stop the others
        return Ending(problem=f"{type(error).__name__}: {error}")


def attempt_on_node(spec_text: str, folder: str, workers: int, wanted: dict[str, str]) -> Ending:
    """The same on a machine that may be another one.

    It must share the folder, and have the versions that are `wanted`.
    """
    node, runs = platform.node(), Path(folder).parent
    for name, here in versions().items():
        if here != wanted[name]:
            return Ending(
                problem=f"{node} has {name} {here}, but the sweep was started with {wanted[name]}; "
                "install the same versions on all nodes"
            )
    if not runs.is_dir():
        return Ending(problem=f"{node} does not see {runs}; choose a folder that all nodes share")
    return attempt(spec_text, folder, min(workers, cores.available()))._replace(node=node)


def versions() -> dict[str, str]:
    """What all nodes must have in common for the same results."""
    python = ".".join(map(str, sys.version_info[:2]))
    return {"pagefl": version("pagefl"), "torch": version("torch"), "Python": python}
