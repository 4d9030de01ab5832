"""The Python interface to many runs: sweep, compare."""

from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any
from warnings import warn

import pandas as pd

from pagefl.core.algorithm import Algorithm
from pagefl.core.errors import UserError
from pagefl.experiments import compare as comparisons
from pagefl.experiments import spec as specs
from pagefl.experiments import sweep as sweeps
from pagefl.experiments.executors import Place
from pagefl.experiments.spec import RunSpec
from pagefl.runtime.halves import Say
from pagefl.runtime.run import Run
from pagefl.runtime.task import Task


def compare(runs: str | Path | Run | Iterable[str | Path | Run], *, say: Say = warn) -> pd.DataFrame:
    """Compare run directories, folders of them, or runs in memory: one row per method and data setting.

    Accuracies are fractions; `_mean` and `_std` are over seeds. `global_difference` is the gain in the last
    round over the method in `global_against`, with a 95 % interval from `global_low` to `global_high`. `say`
    is called with what was left out.
    """
    sources = [runs] if isinstance(runs, str | Path | Run) else list(runs)
    return comparisons.summary(comparisons.by_run(comparisons.gather(sources, say), say))


def sweep(
    spec: str | Path | RunSpec | specs.Raw | None = None,
    *,
    sweep: dict[str, list[Any]] | None = None,
    out: str | Path = "sweep",
    jobs: int = 0,
    executor: str = "local",
    address: str | None = None,
    slurm: Mapping[str, Any] | None = None,
    say: Say = warn,
    **settings: Any,
) -> pd.DataFrame:
    """Run every combination of the lists in `sweep` and return one row per run.

    `sweep={"algorithm": ["fedavg", "page"], "seed": [0, 1, 2]}`. `settings` are as for `run`. `out`: folder
    of the runs; finished runs are not repeated. `jobs`: number of parallel runs, 0 for one per core. A failed
    run has no results; the column `problem` says why.

    `executor`: "local", "ray" or "slurm"; on a cluster, `out` must be a folder that all nodes share.
    `address`: of a running Ray cluster, such as "auto"; without it, a Ray of its own. `slurm`: options of
    sbatch, such as {"partition": "short", "time": 120}.
    """
    chosen = Place(executor, address, slurm or {})
    if jobs < 0:
        raise UserError(f"jobs = {jobs}: must be 0 or greater")
    raw = (
        spec.model_dump()
        if isinstance(spec, RunSpec)
        else specs.read(Path(spec))
        if isinstance(spec, str | Path)
        else spec
    )
    raw = dict(raw or {}) | ({} if sweep is None else {"sweep": sweep})
    for name, value in settings.items():
        if isinstance(value, Task | Algorithm):
            raise UserError(
                f"sweep: {name} must be a name; run your own with `pagefl.run(..., out=...)`, then "
                "`pagefl.compare`"
            )
        specs.put(raw, "task.clients" if name == "clients" else name, value)
    grid = sweeps.grid(raw)
    names = [str(Path(out) / sweeps.name_of(each)) for each in grid]
    wanted, choices = (
        dict(zip(names, grid, strict=True)),
        dict(zip(names, product(*raw["sweep"].values()), strict=True)),
    )
    done = sweeps.run_missing(wanted.values(), Path(out), jobs, place=chosen)
    if done.finished < done.runs:
        say(f"{done.runs - done.finished} of {done.runs} runs are not finished; see the column `problem`")
    found = {str(one.path): one.rounds for one in sweeps.finished(wanted.values(), Path(out))}
    runs = [
        comparisons.Recorded(name, each, found.get(name, []), name in found) for name, each in wanted.items()
    ]
    frame = comparisons.by_run(runs, lambda message: None)
    for place, name in enumerate(raw["sweep"]):
        if name not in frame:
            frame.insert(
                place, name, frame["run"].map({run: choice[place] for run, choice in choices.items()})
            )
    problems = {str(Path(out) / name): problem for name, problem in done.failed.items()}
    return frame.assign(problem=frame["run"].map(problems))
