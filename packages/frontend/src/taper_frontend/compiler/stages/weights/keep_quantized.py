"""Store weights that the model computes from integers as integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.product import is_product, packing
from taper_frontend.compiler.analysis.static import static_constants
from taper_frontend.compiler.graph.constants import Derived, derived, steps, transposed
from taper_runtime.formats import PLAIN
from taper_runtime.formats.blocks import MOST_PER_WORD, find_exact
from taper_runtime.ops.rules import INTS

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.constants import Constant
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node

_SMALL = 64 << 10  # bytes; up to here a weight may be float32


def keep_quantized(graph: Graph) -> bool:
    """Store a product's weight as levels, a factor and an offset per block, where it is that.

    ::

        q -> CAST -> SUB(., zeros) -> MUL(., factors) -> RESHAPE -> MATMUL(x, .)

        MATMUL(x, constant in blocks.BITS.SIZE)

    Which formula makes the weight does not matter: its numbers are looked at. Those that a session
    may replace are not known, and stay as they are computed.
    """
    constants = static_constants(graph)
    stored: dict[tuple[str, bool], str | None] = {}
    changed = False
    for node in graph.order():
        weight = _weight(graph, node)
        if weight not in constants:
            continue
        is_transposed = bool(node.attrs.get("transpose_b"))
        key = weight, is_transposed
        if key not in stored:
            stored[key] = _store(graph, weight, constants[weight], is_transposed)
        if (name := stored[key]) is None:
            continue
        inputs = list(node.inputs)
        inputs[node.definition.weights[0]] = name
        attrs = {key: value for key, value in node.attrs.items() if key != "transpose_b"}
        graph.replace_node(node, node.op, inputs, attrs)
        graph.listener.fired("keep_quantized", node.output)
        changed = True
    return changed


def _weight(graph: Graph, node: Node) -> str | None:
    """Return the weight that a product would read in panels, if it is a float32 matrix."""
    if not is_product(node):
        return None
    weight = node.inputs[node.definition.weights[0]]
    type_ = graph.tensors[weight].type
    if (type_.dtype, type_.format) != ("float32", PLAIN):
        return None
    if packing(node, type_, {**node.complete_attrs(), "transpose_b": False}) != "panels.1":
        return None
    return weight


def _store(graph: Graph, weight: str, constant: Constant, is_transposed: bool) -> str | None:
    """Add the weight, a matrix of levels, as a constant; None if it is no such."""
    if constant.is_open or constant.nbytes <= _SMALL or not _is_from_integers(constant):
        return None
    matrix = transposed(constant) if is_transposed else constant
    format = find_exact(matrix.value())
    if format is None:
        return None
    recipe = derived("PACK", [matrix], {"format": format})
    return graph.add_constant(f"{weight}.blocks", recipe)


def _is_from_integers(constant: Constant) -> bool:
    """Return whether arithmetic computes it from integers.

    A CAST alone does not count: it decodes a format that kernels may read.
    """
    if not isinstance(constant, Derived) or constant.op == "CAST":
        return False
    least = constant.type.size / MOST_PER_WORD
    return any(
        leaf.dtype in INTS and leaf.type.size >= least
        for leaf in steps(constant)
        if not isinstance(leaf, Derived)
    )
