"""Writes a run's records to experiment trackers. Each tracker needs an extra and is passed as an observer:

pagefl.run(..., observe=TensorBoard("runs/page/tensorboard").observe)
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from pagefl.core.errors import UserError
from pagefl.runtime.record import Record


class Tracker(Protocol):
    def observe(self, record: Record) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Writes event files to a folder. `tensorboard --logdir runs` shows all runs below it."""

    def __init__(self, folder: Path | str, spec_text: str = "") -> None:
        _needs("tensorboard", "tensorboard")
        self.folder, self.spec_text = Path(folder), spec_text
        self.writer: Any = None

    def observe(self, record: Record) -> None:
        # Created in the first round: the writer has a thread, and a run forks its workers before that.
        if self.writer is None:
            from torch.utils.tensorboard import SummaryWriter

            # A resumed run repeats some rounds.
            self.writer = SummaryWriter(str(self.folder), purge_step=record["round"])
            self.writer.add_text("spec", f"```toml\n{self.spec_text}\n```")
        for name, value in numbers(record).items():
            self.writer.add_scalar(name.replace(".", "/"), value, record["round"])

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


class MlFlow:
    """Writes to the experiment `pagefl` at MLFLOW_TRACKING_URI. If unset: to files beside the run."""

    def __init__(self, folder: Path | str, spec_text: str = "", name: str | None = None) -> None:
        _needs("mlflow", "mlflow")
        from mlflow import MlflowClient

        server, own = os.environ.get("MLFLOW_TRACKING_URI"), Path(folder).absolute()
        own.parent.mkdir(parents=True, exist_ok=True)
        self.client = MlflowClient(server or f"sqlite:///{own}.db")
        found = self.client.get_experiment_by_name("pagefl")
        files = None if server else own.as_uri()
        experiment = (
            found.experiment_id if found else self.client.create_experiment("pagefl", artifact_location=files)
        )
        self.run_id = self.client.create_run(
            experiment, run_name=name or Path(folder).parent.name
        ).info.run_id
        self.client.log_text(self.run_id, spec_text, "spec.toml")

    def observe(self, record: Record) -> None:
        from mlflow.entities import Metric

        step = record["round"]
        self.client.log_batch(
            self.run_id, [Metric(name, value, 0, step) for name, value in numbers(record).items()]
        )

    def close(self) -> None:
        self.client.set_terminated(self.run_id)


TRACKERS: dict[str, Callable[..., Tracker]] = {"tensorboard": TensorBoard, "mlflow": MlFlow}


def tracker(name: str, directory: Path, spec_text: str) -> Tracker:
    """The tracker of this name. It writes beside the run."""
    if name not in TRACKERS:
        raise UserError(f"--track {name}: expected {' or '.join(TRACKERS)}")
    return TRACKERS[name](directory / name, spec_text)


def numbers(record: Record, prefix: str = "") -> dict[str, float]:
    """All numbers of a record except the round. Tables are flattened, such as `agents.server_critic`."""
    found: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            found |= numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool) and name != "round":
            found[prefix + name] = float(value)
    return found


def _needs(module: str, extra: str) -> None:
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise UserError(f'track: {module} is not installed; `pip install "pagefl[{extra}]"` brings it')
