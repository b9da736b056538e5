"""Outputs that no node makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taper_frontend.graph.graph import Graph


def materialize_outputs(graph: Graph) -> bool:
    """Give each output that is an input or a constant a COPY: a plan writes all its outputs.

    ::

        x (input) is an output                     x -> COPY -> x.output
    """
    outputs = []
    copies: dict[str, str] = {}
    for name in graph.outputs:
        if graph.producer(name) is None and name not in copies:
            copies[name] = graph.add_node("COPY", [name], name=f"{name}.output")
        outputs.append(copies.get(name, name))
    graph.set_outputs(outputs)
    return bool(copies)
