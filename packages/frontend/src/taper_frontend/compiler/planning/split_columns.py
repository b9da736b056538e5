"""Split products whose columns are read apart, such as queries, keys and values.

One product for all of them is faster, but its result is in memory as long as any column is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.graph.constants import Constant, Derived, derived

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_runtime.ops.region import Range


def split_columns(graph: Graph) -> tuple[list[Node], int]:
    """Split the products of a graph whose columns are read apart; each reads a copy of its input.

    ::

        LAYER_NORM -> MATMUL(., w) -> SLICE -> q    LAYER_NORM -> MATMUL(., w[:, 2n:]) -> v
                                   -> SLICE -> k    LAYER_NORM -> MATMUL(., w[:, n:2n]) -> k
                                   -> SLICE -> v    LAYER_NORM -> MATMUL(., w[:, :n]) -> q

    The first columns are computed last: an op has rows of its first operand, and reads the others
    whole. So attention and the product of queries may be computed in parts.

    Returns
    -------
    order : list of Node
    count : int
        The products that were split.
    """
    order: dict[str, None] = {}
    count = 0
    for name in [node.output for node in graph.order()]:
        slices = _slices(graph, graph.nodes[name]) if name in graph.nodes else []
        count += bool(slices)
        for each in reversed(slices):
            order.update(dict.fromkeys(_compute_apart(graph, graph.nodes[name], each)))
        order[name] = None
    return [graph.nodes[name] for name in order if name in graph.nodes], count


def _slices(graph: Graph, node: Node) -> list[Node]:
    """Return the slices that are all of a product's columns, in order; none if it stays."""
    if node.op != "MATMUL" or graph.is_output(node.output) or _matrix(graph, node) is None:
        return []
    shape = graph.tensors[node.output].shape
    slices = graph.consumers(node.output)
    if any(each.op != "SLICE" for each in slices):
        return []
    attrs = [each.complete_attrs() for each in slices]
    if any(each["axis"] != len(shape) - 1 or each["step"] != 1 for each in attrs):
        return []
    others = [name for name in node.reads if name not in (node.inputs[0], node.inputs[1])]
    if any(_columns(graph, name, (0, shape[-1])) is None for name in others):
        return []
    found = sorted(zip(attrs, slices, strict=True), key=lambda each: each[0]["start"])
    ends = [0, *(each["stop"] for each, _ in found)]
    if len(found) < 2 or [each["start"] for each, _ in found] != ends[:-1] or ends[-1] != shape[-1]:
        return []
    return [each for _, each in found]


def _matrix(graph: Graph, product: Node) -> Constant | None:
    """Return the matrix of which a product reads the packed columns, unless it may change."""
    packed = graph.constants.get(product.inputs[1])
    if not isinstance(packed, Derived) or packed.op != "PACK" or packed.is_open:
        return None
    (matrix, *rest) = packed.inputs
    return matrix if matrix is not None and not any(rest) and len(matrix.shape) == 2 else None


def _columns(graph: Graph, name: str, columns: Range) -> Constant | None:
    """Return some columns of a constant vector with one element for each."""
    constant = graph.constants.get(name)
    if constant is None or constant.is_open or constant.shape[-1:] == ():
        return None
    axis = len(constant.shape) - 1
    attrs = {"axis": axis, "start": columns[0], "stop": columns[1]}
    return derived("SLICE", [constant], attrs) if columns[1] <= constant.shape[-1] else None


def _compute_apart(graph: Graph, product: Node, sliced: Node) -> list[str]:
    """Compute a slice of a product by itself; return the nodes in order, by their outputs."""
    columns = sliced.attrs["start"], sliced.attrs["stop"]
    x, packed, *others = product.inputs
    source = graph.producers.get(x)
    if source is not None and _is_cheap(graph, source):
        x = graph.add_node(source.op, source.inputs, source.attrs, name=f"{x}.apart")
    matrix = _matrix(graph, product)
    assert matrix is not None
    cut = derived("SLICE", [matrix], {"axis": 1, "start": columns[0], "stop": columns[1]})
    weight = derived("PACK", [cut], {"format": graph.tensors[packed].format})
    inputs = [x, graph.add_constant(f"{packed}.columns", weight)]
    for name in others:
        part = _columns(graph, name, columns)
        assert part is not None
        inputs.append(graph.add_constant(f"{name}.columns", part))
    graph.replace_node(sliced, product.op, inputs, product.attrs)
    return [x, sliced.output] if x in graph.producers else [sliced.output]


def _is_cheap(graph: Graph, node: Node) -> bool:
    """Return whether a node reads one tensor that a run computes, and no matrix."""
    computed = [name for name in node.reads if not graph.is_constant(name)]
    matrices = [name for name in node.reads if len(graph.tensors[name].shape) > 1]
    return len(node.outputs) == 1 and computed == matrices[:1] == matrices
