"""Show graphs as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.formats import PLAIN
from taper_runtime.text import counted

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_runtime.plan.plan import TensorSpec

_MAX_LISTED = 8  # longer attr lists are cut: tile programs, masks


def format_graph(graph: Graph) -> str:
    """Return one line per node, in order, between the graph's inputs and outputs.

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
        *(f"  {_format_node(graph, node)}" for node in graph.order()),
        *(f"  next {state.name} = {state.next}" for state in graph.states),
        f"  return {', '.join(graph.outputs)}",
    ]
    return "\n".join(lines)


def _format_node(graph: Graph, node: Node) -> str:
    arguments = [*node.inputs, *(f"{k}={_value(v)}" for k, v in node.attrs.items())]
    line = f"{node.output} = {node.op}({', '.join(arguments)})"
    line += f" -> {format_type(graph.tensors[node.output])}"
    return f"{line}  # {node.source}" if node.source else line


def format_type(spec: TensorSpec) -> str:
    """Return ``"float32[2,3]"``, with the format where it is not plain."""
    text = f"{spec.dtype}[{','.join(map(str, spec.shape))}]"
    return text if spec.format == PLAIN else f"{text} {spec.format}"


def _value(value: Any) -> str:
    if not isinstance(value, tuple):
        return repr(value)
    shown = [str(item) for item in value[:_MAX_LISTED]]
    if len(value) > _MAX_LISTED:
        shown.append(f"... {len(value)} in all")
    return f"[{', '.join(shown)}]"
