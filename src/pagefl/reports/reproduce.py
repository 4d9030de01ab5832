"""Reproduces a table or figure of the paper: runs what is missing, then writes it with published numbers."""

import json
import platform
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

from pagefl.core.errors import UserError
from pagefl.experiments import ledger, sweep
from pagefl.experiments.compare import data_settings, methods
from pagefl.experiments.scales import Experiment
from pagefl.experiments.sweep import Found
from pagefl.experiments.tasks import TASKS
from pagefl.runtime import record
from pagefl.runtime.halves import Say
from pagefl.runtime.machine import machine

from . import figures, html, tables
from .table import Table


def available(experiment: Experiment, say: Say) -> Experiment:
    """The experiment without the blocks whose data are missing. `say` is told about each of them."""
    blocks = []
    for block in experiment.blocks:
        try:
            for task in {spec.task["name"] for row in block.rows.values() for spec in row}:
                if original := TASKS[task].original:
                    original.find()
            blocks.append(block)
        except UserError as missing:
            say(f"left out: {block.title}: {missing}")
    if not blocks:
        raise UserError(
            f"{experiment.name}: none of its data are there; `pagefl data check TASK` says what is missing"
        )
    return replace(experiment, blocks=tuple(blocks))


def write(experiment: Experiment, scale: str, folder: Path, runs: Path) -> tuple[list[Table], list[Path]]:
    """Write tables and files of all finished runs. Missing values are dashes."""
    found = sweep.finished(experiment.specs, runs, folder / ledger.NAME)
    folder.mkdir(parents=True, exist_ok=True)
    made = [table for block in experiment.blocks for table in tables.of_block(block, found)]
    about = _about(experiment, scale, found)
    base = folder / f"{experiment.name}-{scale}"
    texts = {
        ".md": f"# {experiment.name}: {experiment.title}\n\n{about}\n\n"
        + "\n".join(table.markdown() for table in made),
        ".tex": f"% {experiment.name}: {about}\n" + "\n".join(table.latex() for table in made),
        ".csv": "\n".join(table.csv() for table in made),
    }
    written = []
    for suffix, text in texts.items():
        written.append(base.with_suffix(suffix))
        written[-1].write_text(text, encoding="utf-8")
    if found:
        if experiment.figure:
            figure = figures.FIGURES[experiment.figure](experiment.blocks, found)
            suffix = "" if experiment.name.startswith("fig") else f"-{experiment.figure}"  # beside a table
            written += figures.save(figure, folder / f"{experiment.name}-{scale}{suffix}")
        written.append(base.with_suffix(".html"))
        specs = [one.spec for one in found]
        called = zip(methods(specs), data_settings(specs), specs, strict=True)
        titles = [f"{method} on {data}, seed {spec.seed}" for method, data, spec in called]
        runs_shown = [
            html.Reported(name, one.rounds, clients=_clients(one))
            for name, one in zip(titles, found, strict=True)
        ]
        html.write_report(written[-1], f"{experiment.name}: {experiment.title}", runs_shown, about)
    return made, written


def _clients(one: Found) -> list[float]:
    """None if only the ledger has kept the run."""
    return html.last_clients(record.read(one.path)[1]) if one.path.exists() else []


def _about(experiment: Experiment, scale: str, found: Sequence[Found]) -> str:
    """What was run, when and where."""
    here = machine()
    seconds = sum(entry["seconds"] for one in found for entry in one.rounds)
    wanted = len({sweep.name_of(spec) for spec in experiment.specs})
    facts = {
        "commit": here["commit"],
        "cpu": here["cpu"],
        "cores": here["cores"],
        "python": platform.python_version(),
    }
    return (
        f"Scale {scale}, {len(found)} of {wanted} runs finished, {seconds / 60:.0f} minutes of rounds in "
        f"all, {date.today()}. "
        f"Accuracies in per cent, mean ± std over seeds. {json.dumps(facts)}"
    )
