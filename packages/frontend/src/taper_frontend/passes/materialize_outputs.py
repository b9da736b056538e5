"""Outputs that no node makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taper_frontend.graph.graph import Graph


def materialize_outputs(graph: Graph) -> bool:
    """Give each output that is an input or a constant a COPY: a plan writes all its outputs.

    ::

        x (input) is an output                     x -> COPY -> x.output

    The next value of a state has memory of its own: where it is something else too, it is a COPY.
    """
    outputs: list[str] = []
    copies: dict[str, str] = {}
    given = len(graph.outputs) - len(graph.states)
    for name in graph.outputs[:given]:
        if graph.producer(name) is None and name not in copies:
            copies[name] = graph.add_node("COPY", [name], name=f"{name}.output")
        outputs.append(copies.get(name, name))
    for state, name in zip(graph.states, graph.outputs[given:], strict=True):
        if graph.producer(name) is None or name in outputs:
            name = copies[state] = graph.add_node("COPY", [name], name=f"{state}.next")
        outputs.append(name)
    graph.set_outputs(outputs)
    return bool(copies)
