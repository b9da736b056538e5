"""Outputs that no node makes, and those that are one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph


def materialize_outputs(graph: Graph) -> bool:
    """Give each output a tensor of its own, made by a node: a plan writes all its outputs.

    ::

        x (input) is an output                     x -> COPY -> x.output
        y is an output twice                       y, y -> COPY -> y.output

    The next value of a state has one too.
    """
    outputs: list[str] = []
    before = len(graph.nodes)
    given = len(graph.outputs) - len(graph.states)
    for name in graph.outputs[:given]:
        made = graph.producer(name) is not None and name not in outputs
        outputs.append(name if made else graph.add_node("COPY", [name], name=f"{name}.output"))
    for state, name in zip(graph.states, graph.outputs[given:], strict=True):
        made = graph.producer(name) is not None and name not in outputs
        outputs.append(name if made else graph.add_node("COPY", [name], name=f"{state}.next"))
    graph.set_outputs(outputs)
    return len(graph.nodes) > before
