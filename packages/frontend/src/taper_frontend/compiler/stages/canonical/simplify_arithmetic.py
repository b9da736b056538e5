"""Elementwise ops in their simplest form, so that recognisers meet one spelling of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.rules.pattern import rewrite
from taper_runtime.errors import OpError
from taper_runtime.ops.elementwise import MICROOPS

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node

#: (op, position of the number, number): the other operand is the result. x + 0.0 is not here, it
#: makes 0.0 of -0.0.
_NEUTRAL = frozenset({("MUL", 0, 1), ("MUL", 1, 1), ("DIV", 1, 1), ("SUB", 1, 0), ("POW", 1, 1)})

#: Powers with an op of their own, which torch computes that way too.
_POWERS = {2: "SQUARE", 0.5: "SQRT", -0.5: "RSQRT", -1: "RECIPROCAL"}

#: Ops that undo themselves.
_INVOLUTIONS = frozenset({"NEG", "LOGICAL_NOT", "BITWISE_NOT"})

#: The same of a bool.
_NEGATIONS = frozenset({"LOGICAL_NOT", "BITWISE_NOT"})

#: What leaves a bool operand as it is.
_NEUTRAL_MASKS = {
    "LOGICAL_AND": True,
    "BITWISE_AND": True,
    "LOGICAL_OR": False,
    "BITWISE_OR": False,
}


def simplify_arithmetic(graph: Graph) -> bool:
    """Rewrite elementwise ops by rules that keep their value.

    ::

        ADD(x, constant of one element)    ADD(x, scalar)
        x * 1, x / 1, x - 0, x ** 1        x
        x ** 2, x ** 0.5, x ** -1...       SQUARE(x), SQRT(x), RECIPROCAL(x)...
        x ** 3                             MUL(x, SQUARE(x))
        x * x                              SQUARE(x)
        1 / SQRT(x)                        RSQRT(x)
        y / SQRT(x)                        MUL(y, RSQRT(x))   (many y for one x)
        not not x, -(-x)                   x
        x and true, x or false             x
    """
    return rewrite(
        graph,
        _inline_scalar,
        _drop_neutral,
        _drop_double,
        _drop_neutral_mask,
        _expand_power,
        _square,
        _reciprocal_root,
        _divide_root,
    )


def _inline_scalar(graph: Graph, node: Node) -> bool:
    """Make a one-element constant the scalar, if the other operand alone decides the type."""
    if node.op not in MICROOPS or len(node.inputs) < 2 or node.attrs.get("scalar_index", -1) >= 0:
        return False
    for index, name in enumerate(node.inputs):
        value = graph.value(name) if graph.tensors[name].type.size == 1 else None
        if value is None:
            continue
        if node.op == "WHERE" and index == 0:
            continue
        others = node.inputs[:index] + node.inputs[index + 1 :]
        with_scalar = {"scalar": value.item(), "scalar_index": index}
        types = [graph.tensors[t].type for t in others]
        try:
            inferred = node.definition.infer_type(types, with_scalar)
        except OpError:
            continue
        if inferred == graph.tensors[node.output].type:
            graph.replace_node(node, node.op, others, with_scalar)
            return True
    return False


def _drop_neutral(graph: Graph, node: Node) -> bool:
    index = node.attrs.get("scalar_index", -1)
    if index < 0 or (node.op, index, node.attrs["scalar"]) not in _NEUTRAL:
        return False
    source = node.inputs[0]
    if graph.tensors[source].type != graph.tensors[node.output].type:
        return False
    return graph.bypass(node, source)


def _drop_double(graph: Graph, node: Node) -> bool:
    if node.op not in _INVOLUTIONS:
        return False
    producer = graph.producer(node.inputs[0])
    if producer is None:
        return False
    source = producer.inputs[0] if producer.inputs else node.inputs[0]
    both_negate = graph.tensors[source].dtype == "bool" and {node.op, producer.op} <= _NEGATIONS
    if producer.op != node.op and not both_negate:
        return False
    if graph.tensors[source].type != graph.tensors[node.output].type:  # not not 2 is true
        return False
    return graph.bypass(node, source)


def _drop_neutral_mask(graph: Graph, node: Node) -> bool:
    """Drop a constant that is true (in an and) or false (in an or) everywhere."""
    neutral = _NEUTRAL_MASKS.get(node.op)
    if neutral is None or len(node.inputs) != 2 or graph.tensors[node.output].dtype != "bool":
        return False
    for x, mask in (node.inputs, node.inputs[::-1]):
        known = graph.value(mask) if graph.tensors[x].dtype == "bool" else None
        if known is not None and (known == neutral).all():
            graph.replace_node(node, "EXPAND", [x], {"shape": graph.tensors[node.output].shape})
            return True
    return False


def _expand_power(graph: Graph, node: Node) -> bool:
    if node.op != "POW" or node.attrs.get("scalar_index", -1) != 1:
        return False
    x, exponent = node.inputs[0], node.attrs["scalar"]
    floating = graph.tensors[x].dtype == "float32"
    if exponent == 3:
        square = graph.add_node("SQUARE", [x], source=node.source)
        graph.replace_node(node, "MUL", [x, square])
        return True
    if exponent == 2 or (floating and exponent in _POWERS):
        graph.replace_node(node, _POWERS[exponent], [x])
        return True
    return False


def _square(graph: Graph, node: Node) -> bool:
    if node.op != "MUL" or len(node.inputs) != 2 or node.inputs[0] != node.inputs[1]:
        return False
    if graph.tensors[node.output].dtype == "bool":
        return False
    graph.replace_node(node, "SQUARE", node.inputs[:1])
    return True


def _reciprocal_root(graph: Graph, node: Node) -> bool:
    one_over = node.op == "DIV" and node.operands()[0] == 1
    if node.op != "RECIPROCAL" and not one_over:
        return False
    root = graph.producer(node.inputs[0])
    if root is None or root.op != "SQRT":
        return False
    graph.replace_node(node, "RSQRT", root.inputs)
    return True


def _divide_root(graph: Graph, node: Node) -> bool:
    """Many divisions by one root become many multiplications."""
    if node.op != "DIV" or len(node.inputs) != 2:
        return False
    y, name = node.inputs
    root = graph.producer(name)
    if root is None or root.op != "SQRT" or graph.sole_consumer(name) is not node or y == name:
        return False
    if graph.tensors[name].type.size == graph.tensors[node.output].type.size:
        return False
    inverse = graph.add_node("RSQRT", root.inputs, source=root.source)
    graph.replace_node(node, "MUL", [y, inverse])
    return True
