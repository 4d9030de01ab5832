"""The demand ratio: whose rewards count more. The spec schedules it, and `pagefl bias` changes it."""

import json
import operator
from collections.abc import Callable
from pathlib import Path

from pagefl.core.errors import UserError
from pagefl.core.files import write_whole
from pagefl.game.rewards import DemandRatio

from . import vouched

REQUEST, TAKEN = "bias.request", "bias.jsonl"
MOST = 100  # characters of a demand ratio


class Demand:
    def __init__(
        self,
        schedule: list[tuple[int, DemandRatio]],
        directory: Path | None,
        say: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.shifts, self.directory, self.say = list(schedule), directory, say
        self.taken = b""  # the complete lines of the file
        if directory is not None and (directory / TAKEN).is_file():
            content = (directory / TAKEN).read_bytes()
            self.taken = content[: content.rfind(b"\n") + 1]
            self.shifts += [
                _shift(directory / TAKEN, number, line)
                for number, line in enumerate(self.taken.splitlines(), 1)
            ]

    def at(self, round: int) -> DemandRatio:
        """The demand ratio of a round. A request is recorded before it is used, so a resume repeats it."""
        self._take_request(round)
        return self.known(round)

    def known(self, round: int) -> DemandRatio:
        current = DemandRatio()
        for start, bias in self.shifts:  # later lines override earlier ones
            if start <= round:
                current = bias
        return current

    def vouched(self) -> dict[str, vouched.Claim]:
        """Size and checksum of the recorded requests, for a checkpoint."""
        return {TAKEN: vouched.claim_of(self.taken)} if self.taken else {}

    def _take_request(self, round: int) -> None:
        if self.directory is None or not (request := self.directory / REQUEST).exists():
            return
        try:
            if not request.is_file():
                raise ValueError("it is not a file")
            bias = DemandRatio.parse(request.read_bytes()[:MOST].decode())
        except ValueError as error:
            refused = request.replace(self.directory / f"{REQUEST}.refused")
            self.say(
                f"a request for another balance of demand is refused, and put aside as {refused}: {error}"
            )
            return
        self.taken += json.dumps({"round": round, "bias": str(bias)}).encode() + b"\n"
        write_whole(self.directory / TAKEN, self.taken.decode())
        self.shifts.append((round, bias))
        request.unlink()


def tip(directory: Path, ratio: str) -> DemandRatio:
    """Ask a running run for another demand ratio, from its next round on."""
    try:
        bias = DemandRatio.parse(ratio)
    except ValueError as error:
        raise UserError(f"bias: {error}") from None
    write_whole(directory / REQUEST, str(bias))
    return bias


def _shift(path: Path, number: int, line: bytes) -> tuple[int, DemandRatio]:
    try:
        entry = json.loads(line)
        return operator.index(entry["round"]), DemandRatio.parse(entry["bias"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(
            f"{path}: line {number} is not a shift of demand; {vouched.way_out(path.parent)}"
        ) from None
