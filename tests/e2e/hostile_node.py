"""A node's executor that does not do what it is asked. Run as a program, with the executor's own options."""

import sys
from pathlib import Path
from time import sleep

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord

from pagefl.deploy import client_app, wire
from pagefl.deploy.executor import Executor


def claims(message, context):
    """An honest upload, and a size that would own the model."""
    reply = client_app.app(message, context)
    return told(reply, message, size=1e9) if message.content[wire.ASK].get("round") else reply


def attacks(message, context):
    """Something else in every round."""
    reply, round = client_app.app(message, context), message.content[wire.ASK].get("round")
    if round == 1:
        row = np.frombuffer(reply.content[wire.ARRAYS]["model"].data, "<f4")
        return enlarged(reply, message, (-90 * row).astype("<f4").tobytes())
    if round == 2:
        return told(reply, message, test_accuracy=float("nan"))
    if round == 3:
        return enlarged(reply, message, np.random.default_rng(0).bytes(300_000_000))
    while round:  # silence
        sleep(60)
    return reply


def told(reply, message, **lies):
    content = reply.content
    content[wire.NUMBERS] = MetricRecord({**content[wire.NUMBERS], **lies})
    return Message(content, reply_to=message)


def enlarged(reply, message, data):
    content = reply.content
    content[wire.ARRAYS] = ArrayRecord({"model": Array("float32", (len(data) // 4,), wire.RAW, data)})
    return Message(content, reply_to=message)


if __name__ == "__main__":
    kind, _, address, _, secret = sys.argv[1:]
    executor = Executor("node", address, Path(secret), None, print)
    executor.client_app = {"claims": claims, "attacks": attacks}[kind]
    executor.work()
