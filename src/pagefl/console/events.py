"""Server-sent events: a page is told what has changed, as long as it listens."""

import json
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import anyio
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

MOST_WATCHERS = 100
BETWEEN, SILENCE = 0.5, 10.0  # seconds between looks, and before a sign of life
Look = Callable[[], Awaitable[Any | None]]  # what has changed; None if nothing has


class Watchers:
    """Counts the pages that listen."""

    def __init__(self, most: int = MOST_WATCHERS) -> None:
        self.most, self.now = most, 0


class EventStream:
    """A response that goes on until the page is closed."""

    def __init__(self, watchers: Watchers, look: Look) -> None:
        self.watchers, self.look = watchers, look

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.watchers.now >= self.watchers.most:
            busy = PlainTextResponse(f"{self.watchers.most} pages are listening already\n", 503)
            await busy(scope, receive, send)
            return
        self.watchers.now += 1
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._tell, send)
                while (await receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()
        finally:
            self.watchers.now -= 1

    async def _tell(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        told = -SILENCE
        while True:
            text = ""
            if (found := await self.look()) is not None:
                text = f"data: {json.dumps(found, allow_nan=False, separators=(',', ':'))}\n\n"
            elif monotonic() - told > SILENCE:
                text = ": still here\n\n"
            if text:
                told = monotonic()
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
            await anyio.sleep(BETWEEN)
