"""Print graphs as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.base.text import counted
from taper_runtime.formats import PLAIN

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_runtime.plan.plan import TensorSpec

_MAX_LISTED = 8  # longer lists in attrs are cut: tile programs, masks


def format_graph(graph: Graph) -> str:
    """Return one line per node, in order, between the graph's inputs and outputs.

    Graphs inside a node are printed below it, indented.

    ::

        graph(x: float32[2,3]):
          1 constant, 24 bytes
          y = MATMUL(x, weight) -> float32[2,2]  # model.py:7
          return y
    """
    tensors = graph.tensors
    inputs = ", ".join(f"{name}: {format_type(tensors[name])}" for name in graph.inputs)
    constant_bytes = sum(constant.nbytes for constant in graph.constants.values())
    count = len(graph.constants)
    lines = [
        f"graph({inputs}):",
        f"  {counted(count, 'constant')}, {constant_bytes:,} bytes",
        *(f"  state {state.name}: {format_type(tensors[state.name])}" for state in graph.states),
        *(f"  {line}" for node in graph.order() for line in _node_lines(graph, node)),
        *(f"  next {state.name} = {state.next}" for state in graph.states),
        *(f"  size {size} = {name}[{at}]" for size, (name, at) in graph.origins.items()),
        f"  return {', '.join(graph.outputs)}",
    ]
    return "\n".join(lines)


def _node_lines(graph: Graph, node: Node) -> list[str]:
    """Return the line of a node, and the indented lines of its blocks."""
    inputs = [name or "none" for name in node.inputs]
    arguments = [*inputs, *(f"{k}={_value(v)}" for k, v in node.attrs.items())]
    types = ", ".join(format_type(graph.tensors[name]) for name in node.outputs)
    line = f"{', '.join(node.outputs)} = {node.op}({', '.join(arguments)}) -> {types}"
    if node.source.line:
        line += f"  # {node.source.line}"
    inside = [f"  {line}" for block in node.blocks for line in format_graph(block).splitlines()]
    return [line, *inside]


def format_type(spec: TensorSpec) -> str:
    """Return ``"float32[2,3]"``, with the format unless it is plain."""
    text = f"{spec.dtype}[{','.join(map(str, spec.shape))}]"
    return text if spec.format == PLAIN else f"{text} {spec.format}"


def _value(value: Any) -> str:
    if not isinstance(value, tuple):
        return repr(value)
    shown = [str(item) for item in value[:_MAX_LISTED]]
    if len(value) > _MAX_LISTED:
        shown.append(f"... {len(value)} in all")
    return f"[{', '.join(shown)}]"
