"""What a page may ask for: start, resume and extend a run, stop it, tip its demand."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pagefl.core.errors import UserError, shortened, shown
from pagefl.core.files import write_whole
from pagefl.runtime import demand, holder, record
from pagefl.runtime.numbers import MOST

from .runs import DEPLOY, OUTCOME, about

OWN = ".console"  # folder below the runs: what processes print, and specs that were started from a page
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass
class Started:
    """A process that this console has started."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def problem(self) -> str | None:
        """Its last words, if it has failed. A run that was stopped (130, 143) has not."""
        if self.process.poll() in (None, 0, 130, 143):
            return None
        said = self.log.read_bytes()[-4000:].decode(errors="replace").splitlines()
        return shortened(said[-1], 1000) if said else f"it ended with exit code {self.process.returncode}"


class Actions:
    def __init__(self, root: Path) -> None:
        self.root, self.own = root, root / OWN
        self.started: dict[str, Started] = {}

    def start(self, name: str, spec: str) -> None:
        if not NAME.fullmatch(name):
            raise UserError(
                f"name = {shown(name)}: expected letters, digits, '.', '_', '-', a letter or digit first"
            )
        path = self.root / name
        if path.exists() or self.starting(name):
            raise UserError(f"name = {name!r}: there is a run of this name already; choose another")
        self.own.mkdir(mode=0o700, exist_ok=True)
        write_whole(self.own / f"{name}.toml", spec)
        self._launch(name, "run", str(self.own / f"{name}.toml"), "--out", str(path))

    def resume(self, name: str, path: Path, rounds: str | None = None) -> None:
        """`rounds`: go on to this round instead of the last."""
        if holder.holder(path) is not None or self.starting(name):
            raise UserError(f"{name}: the run is going on already")
        if (path / DEPLOY).is_dir() or (path / OUTCOME).exists():
            raise UserError(
                f"{name}: this run is a deployment; start its federation again by the same command"
            )
        further = []
        if rounds is not None:
            facts = record.newest_facts(path)
            reached = facts["round"] if facts else 0
            if not re.fullmatch(r"\d{1,10}", rounds) or not reached < int(rounds) <= MOST:
                raise UserError(f"rounds = {shown(rounds)}: expected a whole number greater than {reached}")
            further = ["--rounds", rounds]
        self._launch(name, "resume", str(path), *further)

    def stop(self, name: str, path: Path) -> None:
        """Ask for a stop after the current round. A federation on this machine is stopped as a whole."""
        if holder.holder(path / DEPLOY) is not None:
            holder.stop(path / DEPLOY)
        elif holder.holder(path) is None and (started := self.starting(name)):
            started.process.terminate()  # it has not begun
        else:
            holder.stop(path)

    def tip(self, name: str, path: Path, ratio: str, uses_demand: bool) -> str:
        """Record a request for another demand ratio, as `pagefl bias` does."""
        if not uses_demand:
            raise UserError(
                f"bias: players = {about(path)['players']!r} do not learn from rewards; demand changes "
                "nothing for them"
            )
        facts = record.newest_facts(path)
        if facts and facts.get("over"):
            raise UserError(f"bias: the run {name} is over; extend it first")
        return str(demand.tip(path, ratio))

    def starting(self, name: str) -> Started | None:
        """The process that was started for a run, if it has not ended."""
        started = self.started.get(name)
        return started if started and started.process.poll() is None else None

    def problem(self, name: str) -> str | None:
        started = self.started.get(name)
        return started.problem if started else None

    def _launch(self, name: str, *command: str) -> None:
        """Start `pagefl` with these arguments. The process goes on if the console ends."""
        self.own.mkdir(mode=0o700, exist_ok=True)
        log = self.own / f"{name.replace('/', '~')}.log"
        with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
            process = subprocess.Popen(  # noqa: S603 (no shell, and our own arguments)
                [sys.executable, "-m", "pagefl", *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                start_new_session=True,
            )
        self.started[name] = Started(process, log)
