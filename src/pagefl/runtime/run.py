"""Run: the records and models of a run, finished or not."""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from pagefl.core import summary
from pagefl.core.block import STEPPED, STEPPED_CLIENTS
from pagefl.core.errors import UserError
from pagefl.core.layout import Layout

from . import record
from .by_class import Classes
from .settings import Settings

if TYPE_CHECKING:  # see `record`
    import pandas as pd

Observe = Callable[[record.Record], None]


@dataclass
class Run:
    """The records and models of a run, finished or not."""

    rounds: list[record.Record]
    client_rounds: list[record.Record]
    state: dict[str, Tensor]
    make_module: Callable[[], nn.Module]
    directory: Path | None = None
    over: bool = True  # it has ended, and was not stopped before
    settings: Settings | None = None  # its settings, if it was run here
    name: str = ""  # such as "fedavg on synthetic"
    planned: int | None = None  # number of rounds
    stopped_by: signal.Signals | None = None  # SIGINT (Ctrl-C) or SIGTERM
    classes: Classes | None = None  # of the clients' simulated devices
    path: str = ""  # how models were trained, such as "plan" or "rows, since …", if it was run here

    @property
    def history(self) -> "pd.DataFrame":
        """One row per round."""
        return record.history(self.rounds)

    @property
    def clients(self) -> "pd.DataFrame":
        """One row per round and client."""
        return record.by_client(self.client_rounds)

    @property
    def model(self) -> nn.Module:
        """The shared model W."""
        if "server.model" not in self.state:
            raise UserError(
                f"{self.directory} has no checkpoint yet, so there is no model; let the run go on for longer"
            )
        return self._module(self.state["server.model"])

    def personal(self, client: int) -> nn.Module:
        """A client's own model: after the personal step if there was one, otherwise after local training."""
        if (name := f"clients.{STEPPED_CLIENTS}") in self.state:
            return self._module(self.state[f"clients.{STEPPED}"][self._sampled(self.state[name], client)])
        if "clients.personal" not in self.state:
            raise UserError(f"client {client}'s own model is on its node: in a deployment it never leaves it")
        rows = self.state.get(f"clients.{STEPPED}", self.state["clients.personal"])
        if client not in range(len(rows)):
            raise UserError(f"client = {client}: must be a whole number from 0 to {len(rows) - 1}")
        return self._module(rows[client])

    def _sampled(self, numbers: Tensor, client: int) -> int:
        """The row of a client, of a federation in which a sample of the clients takes the personal step."""
        found = (numbers == client).nonzero()
        if not len(found):
            some = ", ".join(map(str, numbers[:3].tolist()))
            raise UserError(
                f"client = {client}: the personal step was taken by {len(numbers)} clients ({some}, …), and "
                "this is none of them"
            )
        return int(found[0, 0])

    def __repr__(self) -> str:
        return summary.line(self, self.name, self._facts)

    def _repr_html_(self) -> str:
        return summary.html(self, self.name, self._facts)

    @property
    def _facts(self) -> list[str]:
        rounds = (
            f"{len(self.rounds)} of {self.planned} rounds" if self.planned else f"{len(self.rounds)} rounds"
        )
        found = self.rounds[-1] if self.rounds else {}
        sides = {side: found.get(f"{side}_accuracy") for side in ("global", "local", "personal")}
        accuracies = [f"{side} accuracy {value:.3f}" for side, value in sides.items() if value is not None]
        return [rounds, *accuracies, *([] if self.directory is None else [str(self.directory)])]

    def _module(self, row: Tensor) -> nn.Module:
        module = self.make_module()
        return Layout(module).fill(module, row).eval()
