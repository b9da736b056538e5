"""Softmax written out by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.rules.pattern import find, inverse, op, product, rewrite, tensor

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_frontend.compiler.rules.pattern import Pattern

_X = tensor(lambda spec: spec.dtype == "float32")
_PEAK = op("AMAX", _X, keepdim=True)
_SHIFTED = op("SUB", _X, _PEAK)
_EXP = op("EXP", _SHIFTED)
_TOTAL = op("SUM", _EXP, keepdim=True)

#: formula -> SOFTMAX's attr log
_FORMULAS: tuple[tuple[Pattern, bool], ...] = (
    (product(_EXP, inverse(_TOTAL)), False),
    (op("SUB", _SHIFTED, op("LOG", _TOTAL)), True),
)


def recognize_softmax(graph: Graph) -> bool:
    """Make SOFTMAX of its formula.

    ::

        e = EXP(x - AMAX(x, axis))         SOFTMAX(x, axis)
        e / SUM(e, axis)

        z = x - AMAX(x, axis)              SOFTMAX(x, axis, log=True)
        z - LOG(SUM(EXP(z), axis))

    Only the form that subtracts the maximum is softmax: without it large values overflow, and a
    model that overflows has to do so here too.
    """
    return rewrite(graph, _softmax)


def _softmax(graph: Graph, node: Node) -> bool:
    for formula, log in _FORMULAS:
        match = find(graph, node, formula)
        if match is None:
            continue
        axes, total_axes = (graph.nodes[match[p]].attrs["axes"] for p in (_PEAK, _TOTAL))
        if len(axes) != 1 or tuple(axes) != tuple(total_axes):
            return False
        graph.replace_node(node, "SOFTMAX", [match[_X]], {"axis": axes[0], "log": log})
        return True
    return False
