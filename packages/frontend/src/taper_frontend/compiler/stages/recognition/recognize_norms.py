"""Layer norm and RMS norm written out by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.rules.pattern import either, find, number, op, product, rewrite, tensor

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_frontend.compiler.rules.pattern import Match, Pattern

_X = tensor(lambda spec: spec.dtype == "float32")
_EPS = number()

_MEAN = op("MEAN", _X, keepdim=True)
_CENTRED = op("SUB", _X, _MEAN)
_VARIANCE = either(
    op("MEAN", product(_CENTRED, _CENTRED), keepdim=True),
    op("VAR", _X, keepdim=True, correction=0.0),
)
_LAYER_NORM = product(op("RSQRT", op("ADD", _VARIANCE, _EPS)), _CENTRED)

_MEAN_SQUARE = op("MEAN", product(_X, _X), keepdim=True)
_RMS_NORM = product(op("RSQRT", op("ADD", _MEAN_SQUARE, _EPS)), _X)


def recognize_norms(graph: Graph) -> bool:
    """Make LAYER_NORM and RMS_NORM of their formulas, then give them weight and bias.

    ::

        d = x - MEAN(x)                    LAYER_NORM(x, eps)
        d * RSQRT(MEAN(d * d) + eps)
        x * RSQRT(MEAN(x * x) + eps)       RMS_NORM(x, eps)
        LAYER_NORM(x) * w                  LAYER_NORM(x, w)
        LAYER_NORM(x, w) + b               LAYER_NORM(x, w, b)
        RMS_NORM(x) * w                    RMS_NORM(x, w)

    Means run over the last dimensions; w and b have exactly their shape. VAR(x, correction=0)
    stands for the mean of squares too; simplify_arithmetic has made RSQRT of other spellings.
    """
    return rewrite(graph, _layer_norm, _rms_norm, _weight, _bias)


def _layer_norm(graph: Graph, node: Node) -> bool:
    match = find(graph, node, _LAYER_NORM)
    if match is None:
        return False
    dims = _trailing_dims(graph, match, _MEAN)
    if dims is None or dims != _trailing_dims(graph, match, _VARIANCE):
        return False
    attrs = {"dims": dims, "eps": match[_EPS], "has_weight": False, "has_bias": False}
    graph.replace_node(node, "LAYER_NORM", [match[_X]], attrs)
    return True


def _rms_norm(graph: Graph, node: Node) -> bool:
    match = find(graph, node, _RMS_NORM)
    if match is None:
        return False
    dims = _trailing_dims(graph, match, _MEAN_SQUARE)
    if dims is None:
        return False
    graph.replace_node(node, "RMS_NORM", [match[_X]], {"dims": dims, "eps": match[_EPS]})
    return True


def _trailing_dims(graph: Graph, match: Match, piece: Pattern) -> int | None:
    """Return how many last dimensions the reduction ``piece`` runs over; None if it is others."""
    axes = tuple(graph.nodes[match[piece]].attrs["axes"])
    rank = len(graph.tensors[match[_X]].shape)
    return len(axes) if axes == tuple(range(rank - len(axes), rank)) else None


def _weight(graph: Graph, node: Node) -> bool:
    norm, weight = _norm_and_parameter(graph, node, "MUL")
    if norm is None or len(norm.inputs) > 1:  # it has a weight, or a bias, which comes after it
        return False
    attrs = norm.attrs | ({"has_weight": True} if norm.op == "LAYER_NORM" else {})
    graph.replace_node(node, norm.op, [norm.inputs[0], weight], attrs)
    return True


def _bias(graph: Graph, node: Node) -> bool:
    norm, bias = _norm_and_parameter(graph, node, "ADD")
    if norm is None or norm.op != "LAYER_NORM" or norm.complete_attrs()["has_bias"]:
        return False
    graph.replace_node(node, norm.op, [*norm.inputs, bias], norm.attrs | {"has_bias": True})
    return True


def _norm_and_parameter(graph: Graph, node: Node, op_name: str) -> tuple[Node | None, str]:
    """Return the norm that ``node`` alone reads, and the other operand if it can be a parameter."""
    if node.op != op_name or len(node.inputs) != 2:
        return None, ""
    for name, parameter in (node.inputs, node.inputs[::-1]):
        norm = graph.producer(name)
        if norm is None or norm.op not in ("LAYER_NORM", "RMS_NORM"):
            continue
        shape = graph.tensors[name].shape
        fits = graph.tensors[parameter].shape == shape[len(shape) - norm.attrs["dims"] :]
        if fits and graph.sole_consumer(name) is node:
            return norm, parameter
    return None, ""
