"""Asks the desk, a helper process that has imported the whole package. It ends when it is idle, or we are."""

import asyncio
import json
import subprocess
import sys
from contextlib import suppress
from typing import Any

from pagefl.core.errors import UserError

LONGEST = 50_000_000  # bytes of an answer
PATIENCE = 120.0  # seconds


class Helper:
    def __init__(self) -> None:
        self.process: asyncio.subprocess.Process | None = None
        self.turn = asyncio.Lock()
        self.closed = False

    async def ask(self, question: str, **details: Any) -> Any:
        """The desk's answer. Raises a UserError if that is what the question led to."""
        async with self.turn:
            if self.closed:
                raise UserError(f"{question}: the console is ending")
            process = await self._ready()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps({"question": question, **details}).encode() + b"\n")
            try:
                await process.stdin.drain()
                line = await asyncio.wait_for(process.stdout.readline(), PATIENCE)
                answer = json.loads(line)
            except (TimeoutError, ValueError, OSError):
                self.end()
                raise UserError(
                    f"{question}: the console's helper process gave no answer; try again"
                ) from None
        if problem := answer.get("problem"):
            raise UserError(problem)
        return answer["answer"]

    def close(self) -> None:
        """Whoever waits for an answer gets none, at once."""
        self.closed = True
        self.end()

    def end(self) -> None:
        if self.process and self.process.returncode is None:
            with suppress(ProcessLookupError):  # its pipe is closed with the event loop, which ends it too
                self.process.kill()
        self.process = None

    async def _ready(self) -> asyncio.subprocess.Process:
        if self.process is None or self.process.returncode is not None:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "pagefl.console.desk"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                limit=LONGEST,
                start_new_session=True,  # a Ctrl-C is for us
            )
        return self.process
