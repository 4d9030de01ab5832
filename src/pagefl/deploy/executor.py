"""The executor of a node or of the server: it runs the installed pagefl for every task that Flower hands out.

Flower's own executor starts a process for each message. That process imports everything again, shows the
task's token in the list of processes, and runs the code that came with the app. This executor stays. It
imports once, keeps tokens in memory, and uses nothing of an app but its settings.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Literal

import httpx
from flwr.app import Context, Error, Message
from flwr.common.config import get_fused_config_from_fab
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import context_from_proto, run_from_proto
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from pagefl.core.errors import UserError
from pagefl.core.files import regular
from pagefl.runtime.halves import Say

Side = Literal["node", "server"]
TASKS = {"node": TaskType.CLIENT_APP, "server": TaskType.SERVER_APP}
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
POLL_SECONDS, AWAY_SECONDS = 0.2, 2.0
REFUSED = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)


class Executor:
    def __init__(self, side: Side, address: str, secret: Path, ca: Path | None, say: Say) -> None:
        """`address`: of the runtime API, as HOST:PORT. `secret`: the file that the SuperNode or SuperLink was
        started with. `ca`: the certificate that it is known by; None if it speaks plain HTTP on this machine.
        """
        self.side, self.address, self.say = side, address, say
        self.secret = _read("secret", secret)
        self.ca = _read("ca", ca) if ca else None
        if side == "node":  # imported now, not when the first message has come
            from . import client_app

            self.do: Callable[[str], None] = self._answer
            self.client_app = client_app.app
        else:
            from . import server_app

            self.do = self._serve
            self.server_app = server_app.app

    def work(self) -> None:
        """Do tasks for ever."""
        signed = SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods={ACQUIRE})
        request = AcquireTaskRequest(supported_task_types=[TASKS[self.side]])
        with self._client(signed) as client:
            while True:
                try:
                    task = client.AcquireTask(request)
                except httpx.TransportError:  # not started yet, or being restarted
                    sleep(AWAY_SECONDS)
                    continue
                except httpx.HTTPStatusError as error:
                    if error.response.status_code not in REFUSED:
                        sleep(AWAY_SECONDS)
                        continue
                    raise UserError(
                        f"--address {self.address}: it refuses this executor; expected a SuperNode or "
                        "SuperLink that was started with --isolation process and the same secret"
                    ) from error
                if task.token:
                    self._try(task.token)
                else:
                    sleep(POLL_SECONDS)

    def _try(self, token: str) -> None:
        try:
            self.do(token)
        except httpx.HTTPError as error:  # it was restarted meanwhile, or the run was stopped
            self.say(f"a task could not be finished: {type(error).__name__}: {error}")

    def _answer(self, token: str) -> None:
        """One message to this node."""
        with self._client(RuntimeTokenHttpInterceptor(token)) as client, _alive(client):
            message, context, _, _ = pull_task_input(client)
            try:
                reply, problem = self.client_app(message, context), ""
            except Exception as error:  # the server is told, and the node goes on
                problem = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
                self.say(f"a message could not be answered: {problem}")
                reply = Message(
                    Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, problem[:1000]), reply_to=message
                )
            push_message(client, reply, context)
            _finish(client, context, problem)

    def _serve(self, token: str) -> None:
        """One run of the server. What the app says besides its settings is not used."""
        grid = HttpGrid(self.address, self.ca is None, self.ca, token=token)
        client = grid._runtime_client
        try:
            with _alive(client):
                task = client.PullTaskInput(PullTaskInputRequest())
                run, context = run_from_proto(task.run), context_from_proto(task.context)
                TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
                TaskIdentity.node_id = task.context.node_id
                context.run_config = get_fused_config_from_fab(task.fab.content, run)
                grid.set_run(run)
                try:
                    self.server_app(grid, context)
                    problem = ""
                except Exception as error:  # it is in the run's log
                    problem = f"{type(error).__name__}: {error}"
                    self.say(f"the run has ended: {problem}")
                _finish(client, None, problem)
        finally:
            grid.close()

    def _client(self, *interceptors: ProtobufClientInterceptor) -> RuntimeHttpClient:
        known = RuntimeVersionHttpInterceptor(component_name="pagefl")
        return RuntimeHttpClient.from_server_address(
            self.address, self.ca is None, self.ca, [known, *interceptors]
        )


@contextmanager
def _alive(client: RuntimeHttpClient) -> Iterator[None]:
    """Tell Flower meanwhile that the task is being worked on."""

    def beat() -> bool:
        try:
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        except httpx.TransportError:
            return False
        except httpx.HTTPStatusError:  # the run was stopped: what comes of the task will be refused
            pass
        return True

    sender = HeartbeatSender(beat)
    sender.start()
    try:
        yield
    finally:
        sender.stop()


def _finish(client: RuntimeHttpClient, context: Context | None, problem: str) -> None:
    push_task_output(client, context, SubStatus.FAILED if problem else SubStatus.COMPLETED, problem[:1000])


def _read(name: str, path: Path) -> bytes:
    try:
        regular(path)
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        raise UserError(f"--{name} {path}: it cannot be read ({error}); expected a file") from error
    if not content:
        raise UserError(f"--{name} {path}: the file is empty")
    return content
