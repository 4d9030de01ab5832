"""Flower's grid, which reads no reply that is larger than what was asked for.

Flower reads replies of any size, repeats chunks of arrays as often as a reply says, and waits up to two hours
for the rest of a reply that has begun to arrive. One node could so fill the server's memory, or halt it.
"""

import json
from collections.abc import Iterable
from threading import Lock
from typing import NamedTuple

import httpx
from flwr.app import Array, Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError, inflate_object_from_contents
from flwr.superlink.grid import HttpGrid

from .wire import Refused


class Coming(NamedTuple):
    """A reply that has been announced. Its objects may arrive later."""

    reply: str  # its message id
    objects: list[str]
    contents: dict[str, bytes]


class CappedGrid:
    def __init__(self, grid: HttpGrid, largest: int) -> None:
        """`largest`: bytes of one reply."""
        self.grid, self.largest = grid, largest
        self.client = grid._runtime_client
        self.pull_object = make_pull_object_fn_protobuf(self.client.PullObject, grid.node, grid.run.run_id)
        self.coming: dict[str, Coming] = {}  # by the id of the message that it answers
        self.budget = Budget(largest)
        # httpx calls it when the headers are there, and before the body is read.
        self.client._client.event_hooks = {"response": [self.budget.spend]}

    def get_nodes(self) -> Iterable[NodeInfo]:
        return self.grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self.grid.push_messages(messages)

    def pull_messages(self, names: Iterable[str]) -> Iterable[Message]:
        """The replies to these messages that are complete. Raises if one is refused."""
        return [reply for name in names if (reply := self._pull(name))]

    def _pull(self, name: str) -> Message | None:
        coming = None
        try:
            with self.budget:
                if (coming := self.coming.get(name) or self._announced(name)) is None:
                    return None
                self.coming[name] = coming
                self.budget.left -= sum(map(len, coming.contents.values()))
                for part in coming.objects:
                    if part not in coming.contents:
                        coming.contents[part] = self.pull_object(part)
            check_inflated(coming.contents, self.largest)
        except ObjectUnavailableError:  # the rest is asked for again
            return None
        except Exception:
            self._forget(name, coming)
            raise
        self._forget(name, coming)
        message = inflate_object_from_contents(coming.reply, coming.contents)
        assert isinstance(message, Message)
        message.metadata.__dict__["_message_id"] = coming.reply
        return message

    def _announced(self, name: str) -> Coming | None:
        found = self.client.PullMessages(PullAppMessagesRequest(message_ids=[name]))
        for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            parts = list(dict.fromkeys(part.object_id for part in iterate_object_tree(tree)))
            return Coming(message.metadata.message_id, parts, {})
        return None

    def _forget(self, name: str, coming: Coming | None) -> None:
        """Let the SuperLink delete the reply."""
        self.coming.pop(name, None)
        if coming:
            request = ConfirmMessageReceivedRequest(
                node=self.grid.node, run_id=self.grid.run.run_id, message_object_id=coming.reply
            )
            self.client.ConfirmMessageReceived(request)


class Budget:
    """Bytes that may still be read of a reply."""

    def __init__(self, largest: int) -> None:
        self.largest, self.left, self.counts, self.lock = largest, largest, False, Lock()

    def __enter__(self) -> None:
        self.left, self.counts = self.largest, True

    def __exit__(self, *_: object) -> None:
        self.counts = False

    def spend(self, response: httpx.Response) -> None:
        with self.lock:
            if self.counts:
                self.left -= int(response.headers.get("content-length", self.largest + 1))
                if self.left < 0:
                    raise too_large(self.largest)


def check_inflated(contents: dict[str, bytes], largest: int) -> None:
    """Raise if the arrays would be too large: they may name the same chunk any number of times."""
    total = 0
    for content in contents.values():
        kind, children, _ = get_object_head_values_from_object_content(content)
        if kind == Array.__qualname__:
            chunks = json.loads(get_object_body(content, Array))["arraychunk_ids"]
            total += sum(len(contents[children[chunk]]) for chunk in chunks)
            if total > largest:
                raise too_large(largest)


def too_large(largest: int) -> Refused:
    return Refused(f"its reply is larger than {largest:,} bytes, the most that is due")
