"""Add nodes for outputs that no node makes, and for outputs that share a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph


def materialize_outputs(graph: Graph) -> bool:
    """Give each output its own tensor, made by a node, because a plan writes all outputs.

    ::

        x (input) is an output                     x -> COPY -> x.output
        y is an output twice                       y, y -> COPY -> y.output

    The next value of a state gets one, too.
    """
    given: set[str] = set()
    before = len(graph.nodes)

    def own(name: str, copy: str) -> str:
        if name not in graph.producers or name in given:
            name = graph.add_node("COPY", [name], name=copy)
        given.add(name)
        return name

    graph.set_outputs([own(name, f"{name}.output") for name in graph.outputs])
    for state in graph.states:
        graph.set_next(state.name, own(state.next, f"{state.name}.next"))
    return len(graph.nodes) > before
