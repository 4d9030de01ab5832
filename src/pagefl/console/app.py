"""The web application: which address leads where."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from anyio import to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from pagefl.core.errors import UserError

from . import pages, runs
from .actions import Actions
from .clients import METRICS, ClientRounds
from .desk_process import Helper
from .events import EventStream, Watchers
from .guard import Guard, Keys
from .live import Live
from .runs import NoSuchRun

MOST_COMPARED = 50


class Console:
    def __init__(self, root: Path, keys: Keys) -> None:
        self.root, self.keys = root.resolve(), keys
        self.actions, self.helper, self.watchers = Actions(self.root), Helper(), Watchers()
        self.live = Live(self.root, self.actions)

    # Pages

    async def overview(self, request: Request) -> Response:
        return HTMLResponse(pages.page("overview", self.keys.page))

    async def run(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self.actions.started:  # a run that has just been started has no directory yet
            await to_thread.run_sync(runs.place, self.root, name)
        return HTMLResponse(pages.page("run", self.keys.page, name))

    async def compare(self, request: Request) -> Response:
        return HTMLResponse(pages.page("compare", self.keys.page))

    async def start_page(self, request: Request) -> Response:
        return HTMLResponse(pages.page("start", self.keys.page))

    async def asset(self, request: Request) -> Response:
        found = pages.asset(request.path_params["file"])
        if found is None:
            raise NoSuchRun("there is no such file")
        return Response(found[0], media_type=found[1], headers={"cache-control": "no-cache"})

    # What pages show

    async def overview_events(self, request: Request) -> ASGIApp:
        return EventStream(self.watchers, self.live.overview_changes())

    async def run_events(self, request: Request) -> ASGIApp:
        name = request.path_params["name"]
        path = self.root.joinpath(*name.split("/"))  # looked at, by `place`, each time it is read
        return EventStream(self.watchers, self.live.run_changes(path, name))

    async def rounds(self, request: Request) -> Response:
        """All curves of a run, for comparisons."""
        name, path = await self._place(request)

        def read() -> dict[str, Any]:
            curves = self.live.of_run(path, name)
            curves.look()
            return {**curves.since(0, 0), "row": self.live.row(runs.Watch(self.root, name))}

        return JSONResponse(await to_thread.run_sync(read))

    async def clients(self, request: Request) -> Response:
        metric = request.query_params.get("metric", METRICS[0])
        if metric not in METRICS:
            raise UserError(f"metric = {metric!r}: expected one of {', '.join(METRICS)}")
        return await self._of_clients(request, lambda found: found.of(metric))

    async def classes(self, request: Request) -> Response:
        return await self._of_clients(request, ClientRounds.by_class)

    async def _of_clients(self, request: Request, told: Callable[[ClientRounds], dict[str, Any]]) -> Response:
        name, path = await self._place(request)

        def read() -> dict[str, Any]:
            curves = self.live.of_run(path, name)
            curves.look()
            with curves.lock:
                return told(curves.clients)

        return JSONResponse(await to_thread.run_sync(read))

    async def settings(self, request: Request) -> Response:
        _, path = await self._place(request)
        return JSONResponse(await self.helper.ask("settings", path=str(path)))

    async def comparison(self, request: Request) -> Response:
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        if not 1 <= len(names) <= MOST_COMPARED:
            raise UserError(f"run: {len(names)} runs; expected 1 to {MOST_COMPARED}")
        paths = [str(await to_thread.run_sync(runs.place, self.root, name)) for name in names]
        return JSONResponse(await self.helper.ask("compare", paths=paths, names=names))

    async def form(self, request: Request) -> Response:
        return JSONResponse(await self.helper.ask("form"))

    # What pages change

    async def check(self, request: Request) -> Response:
        """Changes nothing: what the settings of a form amount to."""
        return JSONResponse(await self._checked(request.scope["fields"]))

    async def start(self, request: Request) -> Response:
        fields = request.scope["fields"]
        name = fields.get("name", "")
        checked = await self._checked({key: value for key, value in fields.items() if key != "name"})
        if checked["problem"]:
            return JSONResponse(checked, 400)
        await to_thread.run_sync(self.actions.start, name, checked["given"])
        return JSONResponse({"name": name})

    async def bias(self, request: Request) -> Response:
        name, path = await self._place(request)
        uses = (await self.helper.ask("settings", path=str(path)))["uses_demand"]
        ratio = request.scope["fields"].get("ratio", "")
        return JSONResponse({"bias": await to_thread.run_sync(self.actions.tip, name, path, ratio, uses)})

    async def stop(self, request: Request) -> Response:
        name = request.path_params["name"]
        if self.actions.starting(name):  # it may have no directory yet
            path = self.root / name
        else:
            name, path = await self._place(request)
        await to_thread.run_sync(self.actions.stop, name, path)
        return JSONResponse({})

    async def resume(self, request: Request) -> Response:
        """With the field `rounds`: extend the run to this round."""
        name, path = await self._place(request)
        rounds = request.scope["fields"].get("rounds")
        await to_thread.run_sync(self.actions.resume, name, path, rounds)
        return JSONResponse({})

    async def _place(self, request: Request) -> tuple[str, Path]:
        name = request.path_params["name"]
        return name, await to_thread.run_sync(runs.place, self.root, name)

    async def _checked(self, fields: dict[str, str]) -> dict[str, Any]:
        given = {name: value for name, value in fields.items() if name != "spec" and value.strip()}
        found: dict[str, Any] = await self.helper.ask("check", fields=given, text=fields.get("spec", ""))
        return found


def application(root: Path, keys: Keys, *, loopback: bool = True) -> Starlette:
    console = Console(root, keys)
    post = ["POST"]
    made = Starlette(
        routes=[
            Route("/", console.overview),
            Route("/compare", console.compare),
            Route("/start", console.start_page),
            Route("/assets/{file}", console.asset),
            Route("/events", console.overview_events),
            Route("/events/{name:path}", console.run_events),
            Route("/rounds/{name:path}", console.rounds),
            Route("/clients/{name:path}", console.clients),
            Route("/classes/{name:path}", console.classes),
            Route("/settings/{name:path}", console.settings),
            Route("/comparison", console.comparison),
            Route("/form", console.form),
            Route("/check", console.check, methods=post),
            Route("/runs", console.start, methods=post),
            Route("/runs/{name:path}/bias", console.bias, methods=post),
            Route("/runs/{name:path}/stop", console.stop, methods=post),
            Route("/runs/{name:path}/resume", console.resume, methods=post),
            Route("/runs/{name:path}", console.run),
        ],
        middleware=[Middleware(Guard, keys=keys, loopback=loopback)],
        exception_handlers={NoSuchRun: _not_found, UserError: _refused, OSError: _refused},
    )
    made.state.console = console
    return made


async def _refused(request: Request, error: Exception) -> Response:
    return JSONResponse({"problem": str(error)}, 400)


async def _not_found(request: Request, error: Exception) -> Response:
    return JSONResponse({"problem": str(error)}, 404)
