"""What pages are told: rows of the overview and one run's curves, read once for all who watch."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any

from anyio import to_thread

from pagefl.core.errors import UserError

from . import runs
from .actions import Actions
from .clients import ClientRounds
from .runs import Row, Watch
from .series import Series

FRESH = 0.4  # seconds for which a look serves all who watch
SEARCH = 2.0  # seconds between searches for new runs
KEPT = 16  # runs whose curves are kept in memory


class Curves:
    """One run's records, as its page draws them."""

    def __init__(self, path: Path) -> None:
        self.series, self.clients, self.lock = Series(path), ClientRounds(path), Lock()
        self.looked, self.last_clients = -SEARCH, 0

    def look(self) -> None:
        with self.lock:
            if monotonic() - self.looked > FRESH:
                self.series.look()
                self.last_clients = self.clients.look()
                self.looked = monotonic()

    def since(self, generation: int, first: int) -> dict[str, Any]:
        """What is new for a page that has this generation, up to this point."""
        with self.lock:
            series = self.series
            start = first if generation == series.generation else 0
            return {
                "generation": series.generation,
                "first": start,
                "points": len(series.points),
                "columns": series.columns(start),
                "marks": series.marks,
                "bias": series.bias,
                "seconds": series.seconds,
                "clients": self.last_clients,
                "problem": series.problem,
            }


class Live:
    def __init__(self, root: Path, actions: Actions) -> None:
        self.root, self.actions = root, actions
        self.watches: dict[str, Watch] = {}
        self.curves: dict[str, Curves] = {}
        self.lock, self.choosing = Lock(), Lock()
        self.searched = self.looked = -SEARCH
        self.rows: dict[str, Row] = {}

    def overview(self) -> dict[str, Row]:
        """A row for each run, by its name."""
        with self.lock:
            now = monotonic()
            if now - self.searched > SEARCH:
                names = runs.find(self.root)
                self.watches = {name: self.watches.get(name) or Watch(self.root, name) for name in names}
                self.searched = now
            if now - self.looked > FRESH:
                self.rows = {name: self.row(watch) for name, watch in self.watches.items()}
                self.rows |= self._not_yet_runs()
                self.looked = monotonic()
            return self.rows

    def row(self, watch: Watch) -> Row:
        """A run's row, with what became of the command that this console started for it."""
        row = watch.look()
        if row["running"]:
            return row
        if self.actions.starting(watch.name):
            return {**row, "state": "starting", "problem": None}
        problem = self.actions.problem(watch.name)
        return {**row, "state": "failed", "problem": problem} if problem else row

    def _not_yet_runs(self) -> dict[str, Row]:
        """Processes that have written nothing yet, or failed before they did."""
        found = {}
        for name in self.actions.started:
            if name in self.watches:
                continue
            starting = self.actions.starting(name) is not None
            problem = self.actions.problem(name)
            if starting or problem:
                state = "starting" if starting else "failed"
                found[name] = {
                    "name": name,
                    "state": state,
                    "problem": problem,
                    "running": False,
                    "ghost": True,
                }
        return found

    def of_run(self, path: Path, name: str) -> Curves:
        """The curves of a run. The longest unused ones are forgotten."""
        with self.choosing:
            found = self.curves.pop(name, None) or Curves(path)
            self.curves[name] = found
            while len(self.curves) > KEPT:
                self.curves.pop(next(iter(self.curves)))
            return found

    def overview_changes(self) -> Callable[[], Awaitable[Any | None]]:
        """What has changed since the page was told last."""
        known: dict[str, Row] | None = None  # nothing was told yet

        async def look() -> dict[str, Any] | None:
            nonlocal known
            rows = dict(await to_thread.run_sync(self.overview))
            before, known, first = known or {}, rows, known is None
            changed = [row for name, row in rows.items() if before.get(name) != row]
            gone = [name for name in before if name not in rows]
            return {"rows": changed, "gone": gone} if changed or gone or first else None

        return look

    def run_changes(self, path: Path, name: str) -> Callable[[], Awaitable[Any | None]]:
        watch = Watch(self.root, name)
        generation, points, told = 0, 0, {}  # type: int, int, dict[str, Any]

        def read() -> dict[str, Any] | None:
            nonlocal generation, points, told
            news = self._news(watch, path, generation, points)
            # Points that were told already are news only if the last one has changed.
            last = {key: values[-1:] for key, values in news.get("columns", {}).items()}
            bare = {**news, "columns": last, "first": 0}
            if bare == told:
                return None
            generation, points, told = news.get("generation", 0), news.get("points", 0), bare
            return news

        async def look() -> dict[str, Any] | None:
            return await to_thread.run_sync(read)

        return look

    def _news(self, watch: Watch, path: Path, generation: int, points: int) -> dict[str, Any]:
        try:
            runs.place(self.root, watch.name)
            curves = self.of_run(path, watch.name)
            curves.look()
            row = self.row(watch)
        except (UserError, OSError) as error:
            row = self._not_yet_runs().get(watch.name, {})
            return {"row": row} if row else {"gone": str(error)}
        # The last point may have changed: rounds are added to it.
        return {"row": row, **curves.since(generation, max(0, points - 1))}
