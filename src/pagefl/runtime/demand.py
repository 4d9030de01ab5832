"""Demand: which side's rewards count how much, as the spec schedules it and as `pagefl bias` tips a running run."""

import json
import os
from pathlib import Path

from pagefl.core.errors import UserError
from pagefl.game.rewards import DemandRatio

REQUEST, TAKEN = "bias.request", "bias.jsonl"


class Demand:
    def __init__(self, schedule: list[tuple[int, DemandRatio]], directory: Path | None) -> None:
        self.shifts, self.directory = list(schedule), directory
        if directory is not None and (directory / TAKEN).exists():
            lines = (directory / TAKEN).read_bytes().splitlines(keepends=True)
            taken = [json.loads(line) for line in lines if line.endswith(b"\n")]
            self.shifts += [(entry["round"], DemandRatio.parse(entry["bias"])) for entry in taken]

    def at(self, round: int) -> DemandRatio:
        """A request is written down before it is played, so that a resume plays it in the same round."""
        self._take_request(round)
        return self.known(round)

    def known(self, round: int) -> DemandRatio:
        current = DemandRatio()
        for start, bias in self.shifts:  # later lines go before earlier ones that begin in the same round or before
            if start <= round:
                current = bias
        return current

    def _take_request(self, round: int) -> None:
        if self.directory is None or not (request := self.directory / REQUEST).exists():
            return
        bias = DemandRatio.parse(request.read_text())
        with (self.directory / TAKEN).open("a") as file:
            file.write(json.dumps({"round": round, "bias": str(bias)}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.shifts.append((round, bias))
        request.unlink()


def tip(directory: Path, ratio: str) -> DemandRatio:
    """Ask a running run for another balance from its next round on."""
    try:
        bias = DemandRatio.parse(ratio)
    except ValueError as error:
        raise UserError(f"bias: {error}") from None
    aside = directory / f"{REQUEST}.aside"
    aside.write_text(str(bias))
    aside.replace(directory / REQUEST)
    return bias
