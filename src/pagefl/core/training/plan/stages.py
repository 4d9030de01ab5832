"""Joins the nodes of a trace into stages: a product, and what is done to its result in one pass over it."""

from collections.abc import Iterator
from dataclasses import dataclass

from .trace import Node, Trace


@dataclass
class Stage:
    """relu(product(input) scaled and shifted + residual), then max-pooled; each part may be left out."""

    node: Node | None  # the product, or another operation; None: the input as it is
    input: int  # numbers of nodes: whose results are read, and which one is made
    output: int
    bias: str | None = None
    norm: Node | None = None
    residual: int | None = None
    relu: bool = False
    pool: Node | None = None

    def takes(self, node: Node) -> bool:
        """Whether the stage can do this node too, as its next part."""
        scaled = self.bias is not None or self.norm is not None
        added = self.residual is not None or self.relu or self.pool is not None
        if node.kind == "norm":
            return not scaled and not added
        if node.kind == "add":
            return not added
        if node.kind == "maxpool":
            return self.residual is None and self.pool is None
        return node.kind == "relu" and not self.relu

    def take(self, number: int, node: Node, inputs: tuple[int, ...]) -> None:
        if node.kind == "norm":
            self.norm = node
        elif node.kind == "add":
            self.residual = next(i for i in inputs if i != self.output)
        elif node.kind == "maxpool":
            self.pool = node
        else:
            self.relu = True
        self.output = number


def stages(trace: Trace) -> Iterator[Stage]:
    """In an order in which every stage finds its inputs made."""
    place = list(range(len(trace.nodes)))  # a node that only sees numbers in another shape is left out
    for number, node in enumerate(trace.nodes):
        if node.kind == "same":
            place[number] = place[node.inputs[0]]
    inputs = [tuple(place[i] for i in node.inputs) for node in trace.nodes]
    readers: dict[int, list[int]] = {}
    for number, node in enumerate(trace.nodes):
        if node.kind != "same":
            for i in inputs[number]:
                readers.setdefault(i, []).append(number)
    taken, made = {0}, []
    for number, node in enumerate(trace.nodes):
        if number in taken or node.kind == "same":
            continue
        taken.add(number)
        if node.kind in ("norm", "relu", "add", "maxpool"):
            stage = Stage(None, inputs[number][0], inputs[number][0])
            stage.take(number, node, inputs[number])
        else:
            stage = Stage(node, inputs[number][0], number, node.bias)
        made.append(stage)
        while stage.node is None or stage.node.kind in ("conv", "linear"):
            following = readers.get(stage.output, [])
            if len(following) != 1 or following[0] in taken or not stage.takes(trace.nodes[following[0]]):
                break
            taken.add(following[0])
            stage.take(following[0], trace.nodes[following[0]], inputs[following[0]])
    return iter(sorted(made, key=lambda stage: stage.output))
